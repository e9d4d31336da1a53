from __future__ import annotations

from typing import Any

import dspy
import pytest

from combee_dspy.aggregators import ParallelScan
from combee_dspy.events import ErrorRaised, NodeFinished, ReflectionTrimmed, ScanFinished, ScanStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall, Lessons, Reflection

WIDE = {"max_lessons": 100}


def facts(lessons: Lessons) -> set[int]:
    return {int(lesson.text.removeprefix("Remember fact ").rstrip(".")) for lesson in lessons.lessons}


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 97, 240, 1_009])
def test_every_reflection_is_learned_from_in_one_batch_a_level(
    n: int, context_of: Any, learner: Any, reflections: Any
) -> None:
    context, predict, events = context_of(learner)
    lessons = ParallelScan(max_call_tokens=10**7, **WIDE).aggregate(reflections(n), context)
    assert facts(lessons) == set(range(n))
    started, *told, finished = events
    assert [event.output for event in told if isinstance(event, NodeFinished)] == list(lessons.nodes)
    assert len(told) == len(lessons.nodes)
    assert isinstance(started, ScanStarted)
    assert isinstance(finished, ScanFinished)
    assert [len(batch) for _, batch in predict.batches] == list(started.levels)
    assert started.reflections == n
    assert finished.nodes == lessons.nodes
    assert finished.lessons == tuple(lesson.text for lesson in lessons.lessons)
    assert predict.roles == {"proposer"}


def test_a_large_batch_gets_more_shards_rather_than_longer_ones(
    context_of: Any, learner: Any, reflections: Any
) -> None:
    """Sixteen records a call, so thirty shards of 240 reflections at two copies, and one merge of their lists."""
    context, predict, events = context_of(learner)
    ParallelScan().aggregate(reflections(240), context)
    assert events[0].levels == (30, 1)
    shards = predict.batches[0][1]
    assert {len(call["examples_with_feedback"]) for call in shards} == {call["most_lessons"] for call in shards} == {16}


@pytest.mark.parametrize(
    ("params", "levels"), [({"merge_fan_in": 4}, (13, 4, 1)), ({"max_call_tokens": 5_000}, (13, 3, 1))]
)
def test_merges_take_as_many_lists_as_they_may_and_as_fit(
    params: dict[str, int], levels: tuple[int, ...], context_of: Any, learner: Any, reflections: Any
) -> None:
    context, _, events = context_of(learner)
    ParallelScan(**params).aggregate(reflections(100), context)
    assert events[0].levels == levels


def test_no_reflections_need_no_call(context_of: Any, learner: Any) -> None:
    context, predict, events = context_of(learner)
    assert ParallelScan().aggregate([], context) == Lessons("answer")
    assert predict.batches == []
    assert events == []


@pytest.mark.parametrize("n", [1, 3, 25, 1_009])
def test_the_last_merge_is_left_to_whoever_joins_the_lessons(
    n: int, context_of: Any, learner: Any, reflections: Any
) -> None:
    context, predict, events = context_of(learner, joined_later=True)
    merged, merges, _ = context_of(learner)
    lessons = ParallelScan(**WIDE).aggregate(reflections(n), context)
    assert facts(lessons) == set(range(n))
    assert lessons.nodes[-1].sources == tuple(range(n))
    assert [len(batch) for _, batch in predict.batches] == list(events[0].levels)
    ParallelScan(**WIDE).aggregate(reflections(n), merged)
    asked = [sum(len(batch) for _, batch in one.batches) for one in (predict, merges)]
    assert asked[1] - asked[0] == (n >= 4)


def test_lessons_name_the_reflections_they_came_from(context_of: Any, learner: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        if name == "MergeLessons":
            return {"lessons": ["remember FACT 3", "a reworded lesson"]}
        return learner(name, values)

    context, _, _ = context_of(script)
    lessons = ParallelScan(copies=1).aggregate(reflections(9), context)
    shard = next(node for node in lessons.nodes if node.level == 1 and 3 in node.sources)
    assert lessons.lessons[0].sources == shard.sources
    assert lessons.lessons[1].sources == tuple(range(9))


def test_a_lesson_of_several_shards_has_all_their_sources(context_of: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        return {"lessons": ["The same everywhere."]}

    context, _, _ = context_of(script)
    lessons = ParallelScan().aggregate(reflections(25), context)
    assert [lesson.sources for lesson in lessons.lessons] == [tuple(range(25))]


def test_a_failed_shard_loses_its_lessons_only_there(context_of: Any, learner: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any] | FailedCall:
        if name == "LearnFromExamples" and any(r["Feedback"] == "fact 0" for r in values["examples_with_feedback"]):
            return FailedCall("TimeoutError: too slow")
        return learner(name, values)

    context, _, _ = context_of(script)
    lessons = ParallelScan(copies=1).aggregate(reflections(16), context)
    failed = [node for node in lessons.nodes if node.failed]
    assert [node.failed for node in failed] == ["TimeoutError: too slow"]
    assert facts(lessons) == set(range(16)) - set(failed[0].sources)


@pytest.mark.parametrize(
    "answer", [FailedCall("TimeoutError: too slow"), {"lessons": []}, {"lessons": None}, {"other": 1}, {"lessons": 3}]
)
def test_a_failed_merge_is_done_by_code(
    answer: dict[str, Any] | FailedCall, context_of: Any, learner: Any, reflections: Any
) -> None:
    context, _, _ = context_of(lambda name, values: answer if name == "MergeLessons" else learner(name, values))
    lessons = ParallelScan().aggregate(reflections(20), context)
    assert facts(lessons) == set(range(20))
    assert lessons.nodes[-1].level == 2
    assert lessons.nodes[-1].failed


def test_when_every_call_fails_there_are_no_lessons_and_no_merge(context_of: Any, reflections: Any) -> None:
    context, predict, _ = context_of(lambda name, values: FailedCall("AuthError: no"))
    lessons = ParallelScan().aggregate(reflections(9), context)
    assert lessons.lessons == ()
    assert [node.failed for node in lessons.nodes if node.level == 1] == ["AuthError: no"] * 3
    assert [name for name, _ in predict.batches] == ["LearnFromExamples"]


def test_one_list_needs_no_merge(context_of: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        assert name == "LearnFromExamples"
        found = any(r["Feedback"] == "fact 0" for r in values["examples_with_feedback"])
        return {"lessons": ["Only here."] if found else []}

    context, _, _ = context_of(script)
    lessons = ParallelScan(copies=1).aggregate(reflections(9), context)
    assert [lesson.text for lesson in lessons.lessons] == ["Only here."]


def test_lists_too_long_for_a_merge_are_joined_by_code(context_of: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        assert name == "LearnFromExamples"
        return {"lessons": [f"Lesson {r['Feedback']}: " + "long " * 150 for r in values["examples_with_feedback"]]}

    context, _, events = context_of(script)
    lessons = ParallelScan(copies=1, max_call_tokens=4_000, max_lessons=12).aggregate(reflections(36), context)
    assert len(lessons.lessons) == 36
    assert any("joined by code" in event.error for event in events if isinstance(event, ErrorRaised))


def test_too_many_lessons_are_cut_with_an_event(context_of: Any, reflections: Any) -> None:
    context, _, events = context_of(lambda name, values: {"lessons": [f"Lesson {i}." for i in range(50)]})
    lessons = ParallelScan(max_lessons=5).aggregate(reflections(3), context)
    assert [lesson.text for lesson in lessons.lessons] == [f"Lesson {i}." for i in range(5)]
    assert [event.fatal for event in events if isinstance(event, ErrorRaised)] == [False]


def test_long_reflections_are_split_and_every_call_fits(context_of: Any, learner: Any, reflections: Any) -> None:
    from combee_dspy.reflections import estimate_record_tokens

    given = [Reflection(i, {"Inputs": {"q": "x" * 4_000 * (i % 7)}, "Feedback": f"fact {i}"}) for i in range(60)]
    context, predict, events = context_of(learner)
    lessons = ParallelScan(max_call_tokens=9_000, **WIDE).aggregate(given, context)
    assert facts(lessons) == set(range(60))
    assert {event.index for event in events if isinstance(event, ReflectionTrimmed)} == {
        i for i in range(60) if i % 7 > 1
    }
    name, calls = predict.batches[0]
    assert name == "LearnFromExamples"
    assert all(estimate_record_tokens(call["examples_with_feedback"]) < 8_500 for call in calls)


def test_images_reach_the_call_as_images(context_of: Any, learner: Any) -> None:
    image = dspy.Image("https://example.org/a.png")
    context, predict, _ = context_of(learner)
    ParallelScan().aggregate([Reflection(0, {"Inputs": {"i": image}, "Feedback": "fact 0"})], context)
    assert predict.batches[0][1][0]["examples_with_feedback"][0]["Inputs"]["i"] is image


def test_the_same_seed_gives_the_same_shards_and_another_place_others(
    context_of: Any, learner: Any, reflections: Any
) -> None:
    def shards(**kwargs: Any) -> Any:
        context, predict, _ = context_of(learner, **kwargs)
        ParallelScan().aggregate(reflections(30), context)
        return predict.batches

    assert shards(seed=1) == shards(seed=1)
    assert shards(seed=1) != shards(seed=2)
    assert shards(seed=1, place="other") != shards(seed=1)


@pytest.mark.parametrize(
    "params",
    [
        {"copies": 0},
        {"fan_in": 1},
        {"merge_fan_in": 1},
        {"max_call_tokens": 10},
        {"max_lessons": 0},
        {"placement": "x"},
        {"copies": 3, "placement": "plain", "fan_in": 2, "window": 1},
        {"window": 0},
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    params: dict[str, Any], context_of: Any, learner: Any, reflections: Any
) -> None:
    context, predict, _ = context_of(learner)
    with pytest.raises(ArgumentValueError) as caught:
        ParallelScan(**params).aggregate(reflections(9), context)
    assert caught.value.argument == next(iter(params))
    assert predict.batches == []


def test_an_instruction_longer_than_a_call_still_learns(context_of: Any, learner: Any, reflections: Any) -> None:
    context, _, _ = context_of(learner, text="word " * 40_000)
    assert facts(ParallelScan().aggregate(reflections(5), context)) == set(range(5))
