from __future__ import annotations

from typing import Any

import pytest

from combee_dspy.aggregators import ParallelScan, Union
from combee_dspy.events import ErrorRaised, NodeFinished, ScanFinished, ScanStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall, Lessons, Reflection

WIDE = {"max_lessons": 100, "max_tokens": 10**6}


@pytest.mark.parametrize("sharding", ["shuffle", "topic"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 97, 240])
def test_every_lesson_is_kept_and_only_shards_cost_calls(
    n: int, sharding: Any, context_of: Any, learner: Any, reflections: Any, facts: Any
) -> None:
    context, predict, events = context_of(learner)
    lessons = Union(sharding=sharding, **WIDE).aggregate(reflections(n), context)
    assert facts(lessons) == set(range(n))
    started, *told, finished = events
    assert isinstance(started, ScanStarted) and isinstance(finished, ScanFinished)
    ((name, calls),) = predict.batches
    assert name == "AddLessons"
    assert started.levels == (len(calls), 0)
    assert [event.output for event in told if isinstance(event, NodeFinished)] == list(lessons.nodes)
    assert [(node.level, node.sources) for node in lessons.nodes[-1:]] == [(2, tuple(range(n)))]
    assert {call["current_instruction"] for call in calls} == {"Answer."}
    assert predict.roles == {"proposer"}


def test_the_shards_are_those_of_the_parallel_scan(context_of: Any, learner: Any, reflections: Any) -> None:
    def shards(aggregator: Any) -> Any:
        context, predict, _ = context_of(learner)
        aggregator.aggregate(reflections(50), context)
        return [call["examples_with_feedback"] for call in predict.batches[0][1]]

    assert shards(Union(fan_in=8, window=None)) == shards(ParallelScan(fan_in=8, max_lessons=100))


def test_no_reflections_need_no_call(context_of: Any, learner: Any) -> None:
    context, predict, events = context_of(learner)
    assert Union().aggregate([], context) == Lessons("answer")
    assert predict.batches == []
    assert events == []


def test_near_duplicates_become_one_with_all_sources_and_the_longer_wording(context_of: Any, reflections: Any) -> None:
    words = "Give the growth rate as a percentage with two decimals and no sign when the question asks for a rate"

    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        holds_first = any(record["Feedback"] == "fact 0" for record in values["examples_with_feedback"])
        return {"lessons": [f"{words}." if holds_first else f"{words} today.", "Divide by 4."]}

    context, _, _ = context_of(script)
    lessons = Union(copies=1).aggregate(reflections(9), context)
    assert [lesson.text for lesson in lessons.lessons] == [f"{words} today.", "Divide by 4."]
    assert {lesson.sources for lesson in lessons.lessons} == {tuple(range(9))}


def test_lessons_that_differ_in_a_number_stay_two(context_of: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        first = any(record["Feedback"] == "fact 0" for record in values["examples_with_feedback"])
        return {"lessons": [f"Round every monetary result of a question to {2 if first else 4} decimals."]}

    context, _, _ = context_of(script)
    assert len(Union(copies=1).aggregate(reflections(9), context).lessons) == 2


def test_a_failed_shard_loses_its_lessons_only_there(
    context_of: Any, learner: Any, reflections: Any, facts: Any
) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any] | FailedCall:
        if any(record["Feedback"] == "fact 0" for record in values["examples_with_feedback"]):
            return FailedCall("TimeoutError: too slow")
        return learner(name, values)

    context, _, _ = context_of(script)
    lessons = Union(copies=1).aggregate(reflections(16), context)
    failed = [node for node in lessons.nodes if node.failed]
    assert [node.failed for node in failed] == ["TimeoutError: too slow"]
    assert facts(lessons) == set(range(16)) - set(failed[0].sources)


def test_a_list_past_the_budget_is_shortened_by_one_call(context_of: Any, learner: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        if name == "AddLessons":
            found = learner(name, values)["lessons"]
            return {"lessons": [f"Please remember that {lesson}" for lesson in found]}
        return learner(name, values)

    context, predict, _ = context_of(script)
    lessons = Union(max_tokens=100).aggregate(reflections(16), context)
    assert [name for name, _ in predict.batches] == ["AddLessons", "ShortenLessons"]
    ((_, shards), (_, (asked,))) = predict.batches
    assert len(asked["long_lessons"]) == 16
    assert asked["most_words"] == 65
    assert {lesson.text for lesson in lessons.lessons} == {f"Remember fact {i}." for i in range(16)}
    assert [(node.level, node.failed) for node in lessons.nodes[len(shards) :]] == [(2, None), (3, None)]
    assert len(lessons.nodes[-2].lessons) == 16


@pytest.mark.parametrize(
    "answer", [FailedCall("E: x"), {"lessons": []}, {"lessons": None}, {"x": 1}, {"lessons": ["word " * 200]}]
)
def test_a_list_that_cannot_be_shortened_is_kept_whole_and_said(
    answer: Any, context_of: Any, learner: Any, reflections: Any, facts: Any
) -> None:
    context, _, events = context_of(lambda name, values: answer if name == "ShortenLessons" else learner(name, values))
    lessons = Union(max_tokens=10).aggregate(reflections(20), context)
    assert facts(lessons) == set(range(20))
    assert lessons.nodes[-1].level == 3
    assert lessons.nodes[-1].failed
    assert [event.where for event in events if isinstance(event, ErrorRaised)] == ["scan of answer, level 3, node 0"]


def test_a_list_longer_than_a_call_is_shortened_in_parts_at_once(context_of: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any] | FailedCall:
        if name == "AddLessons":
            return {"lessons": [f"{r['Feedback']} {'long ' * 60}" for r in values["examples_with_feedback"]]}
        if any(lesson.startswith("fact 0 ") for lesson in values["long_lessons"]):
            return FailedCall("TimeoutError: too slow")
        return {"lessons": [" ".join(lesson.split()[:2]) for lesson in values["long_lessons"]]}

    context, predict, _ = context_of(script)
    lessons = Union(max_call_tokens=3_000, max_tokens=1_000).aggregate(reflections(60), context)
    assert [name for name, _ in predict.batches] == ["AddLessons", "ShortenLessons"]
    parts = [node for node in lessons.nodes if node.level == 3]
    assert len(parts) == len(predict.batches[1][1]) > 1
    assert sum(node.failed is not None for node in parts) == 1
    assert {" ".join(lesson.text.split()[:2]) for lesson in lessons.lessons} == {f"fact {i}" for i in range(60)}
    # Only the part whose call failed is still long.
    kept = next(node for node in parts if node.failed)
    assert {lesson.text for lesson in lessons.lessons if "long" in lesson.text} == set(kept.lessons)
    assert lessons.nodes[-1].level == 4


def test_topics_share_a_shard(context_of: Any, learner: Any) -> None:
    subjects = ("the net present value of a bond", "tense and mood of irregular verbs", "boiling points of alkanes")
    given = [
        Reflection(i, {"Inputs": {"q": f"case {i}"}, "Feedback": f"Wrong about {subjects[i % 3]}, number {i}"})
        for i in range(30)
    ]
    context, predict, _ = context_of(learner)
    Union(copies=1, sharding="topic", fan_in=10).aggregate(given, context)
    shards = [
        {subject for record in call["examples_with_feedback"] for subject in subjects if subject in record["Feedback"]}
        for call in predict.batches[0][1]
    ]
    # Cuts of equal size fall inside a topic now and then, but no shard holds them all.
    assert max(map(len, shards)) <= 2
    assert sum(len(shard) == 1 for shard in shards) >= len(shards) // 2


def test_topic_shards_keep_fan_in_tokens_and_copies(context_of: Any, learner: Any) -> None:
    given = [Reflection(i, {"Inputs": "x" * 400 * (i % 5), "Feedback": f"fact {i}"}) for i in range(60)]
    context, predict, _ = context_of(learner)
    Union(sharding="topic", fan_in=7, max_call_tokens=4_000).aggregate(given, context)
    shards = [[record["Feedback"] for record in call["examples_with_feedback"]] for call in predict.batches[0][1]]
    assert max(map(len, shards)) <= 7
    assert all(len(set(shard)) == len(shard) for shard in shards)
    seen = [fact for shard in shards for fact in shard]
    assert {seen.count(f"fact {i}") for i in range(60)} == {2}


@pytest.mark.parametrize("sharding", ["shuffle", "topic"])
def test_the_same_seed_gives_the_same_shards(sharding: Any, context_of: Any, learner: Any, reflections: Any) -> None:
    def shards(**kwargs: Any) -> Any:
        context, predict, _ = context_of(learner, **kwargs)
        Union(sharding=sharding).aggregate(reflections(30), context)
        return predict.batches

    assert shards(seed=1) == shards(seed=1)
    assert shards(seed=1) != shards(seed=2)


@pytest.mark.parametrize(
    "params",
    [
        {"copies": 0},
        {"fan_in": 1},
        {"max_call_tokens": 10},
        {"max_lessons": 0},
        {"placement": "x"},
        {"window": 0},
        {"max_tokens": 0},
        {"similarity": 0.0},
        {"similarity": 1.1},
        {"sharding": "x"},
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    params: dict[str, Any], context_of: Any, learner: Any, reflections: Any
) -> None:
    context, predict, _ = context_of(learner)
    with pytest.raises(ArgumentValueError) as caught:
        Union(**params).aggregate(reflections(9), context)
    assert caught.value.argument == next(iter(params))
    assert predict.batches == []
