from __future__ import annotations

from typing import Any

import pytest

from combee_dspy.aggregators import Summarize
from combee_dspy.events import ErrorRaised, NodeFinished, ReflectionTrimmed, ScanFinished, ScanStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall, Lessons, Reflection
from combee_dspy.reflections import estimate_record_tokens


@pytest.mark.parametrize("n", [4, 11, 40, 240, 600])
def test_shards_are_summarized_at_once_and_one_call_reads_all_summaries(
    n: int, context_of: Any, learner: Any, reflections: Any, facts: Any
) -> None:
    context, predict, events = context_of(learner)
    lessons = Summarize().aggregate(reflections(n), context)
    assert facts(lessons) == set(range(n))
    (summarized, shards), (learned, (last,)) = predict.batches
    assert (summarized, learned) == ("SummarizeExamples", "LearnFromSummaries")
    assert max(len(shard["examples_with_feedback"]) for shard in shards) <= 10
    assert len(last["summaries"]) == len(shards)
    started, *told, finished = events
    assert isinstance(started, ScanStarted) and isinstance(finished, ScanFinished)
    assert started.levels == (len(shards), 1)
    assert [event.output for event in told if isinstance(event, NodeFinished)] == list(lessons.nodes)
    assert predict.roles == {"proposer"}


def test_one_shard_is_read_without_a_summary(context_of: Any, learner: Any, reflections: Any, facts: Any) -> None:
    context, predict, _ = context_of(learner)
    assert facts(Summarize().aggregate(reflections(3), context)) == {0, 1, 2}
    assert [name for name, _ in predict.batches] == ["LearnFromExamples"]


def test_no_reflections_need_no_call(context_of: Any, learner: Any) -> None:
    context, predict, _ = context_of(learner)
    assert Summarize().aggregate([], context) == Lessons("answer")
    assert predict.batches == []


def test_shards_respect_the_tokens_of_a_call(context_of: Any, learner: Any, facts: Any) -> None:
    given = [Reflection(i, {"Inputs": "x" * 4_000 * (i % 7), "Feedback": f"fact {i}"}) for i in range(60)]
    context, predict, events = context_of(learner)
    assert facts(Summarize(max_call_tokens=9_000).aggregate(given, context)) == set(range(60))
    assert any(isinstance(event, ReflectionTrimmed) for event in events)
    assert all(estimate_record_tokens(call["examples_with_feedback"]) < 8_500 for call in predict.batches[0][1])


def test_long_summaries_share_the_last_call_and_what_is_cut_is_said(context_of: Any, reflections: Any) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any]:
        if name == "LearnFromSummaries":
            return {"lessons": [points[0].split(":")[0] for points in values["summaries"]]}
        return {
            "key_points": [
                f"{record['Feedback']} {number}: {'long ' * 100}"
                for record in values["examples_with_feedback"]
                for number in range(2)
            ]
        }

    context, predict, events = context_of(script)
    lessons = Summarize(max_call_tokens=3_000).aggregate(reflections(40), context)
    (_, shards), (_, (last,)) = predict.batches
    assert estimate_record_tokens(last["summaries"]) <= 2_000
    assert len(lessons.lessons) == len(shards)
    assert sum("share" in event.error for event in events if isinstance(event, ErrorRaised)) == len(shards)
    # The node keeps all that the call returned.
    assert len(lessons.nodes[0].lessons) > len(last["summaries"][0])


def test_so_many_reflections_that_summaries_would_be_slivers_get_larger_shards(
    context_of: Any, learner: Any, reflections: Any
) -> None:
    context, predict, _ = context_of(learner)
    Summarize(max_call_tokens=3_000).aggregate(reflections(300), context)
    assert len(predict.batches[0][1]) <= 17
    assert min(call["most_words"] for call in predict.batches[0][1]) >= 75


def test_a_failed_summary_is_missing_and_the_rest_goes_on(
    context_of: Any, learner: Any, reflections: Any, facts: Any
) -> None:
    def script(name: str, values: dict[str, Any]) -> dict[str, Any] | FailedCall:
        if name == "SummarizeExamples" and any(r["Feedback"] == "fact 0" for r in values["examples_with_feedback"]):
            return FailedCall("TimeoutError: too slow")
        return learner(name, values)

    context, _, _ = context_of(script)
    lessons = Summarize().aggregate(reflections(40), context)
    (failed,) = [node for node in lessons.nodes if node.failed]
    assert facts(lessons) == set(range(40)) - set(failed.sources)


@pytest.mark.parametrize("answer", [FailedCall("E: x"), {"lessons": []}, {"lessons": None}, {"x": 1}])
def test_without_the_last_call_the_points_are_the_lessons(
    answer: Any, context_of: Any, learner: Any, reflections: Any, facts: Any
) -> None:
    context, _, _ = context_of(lambda name, values: answer if name == "LearnFromSummaries" else learner(name, values))
    lessons = Summarize().aggregate(reflections(40), context)
    assert facts(lessons) == set(range(40))
    assert lessons.nodes[-1].failed


def test_when_every_summary_fails_the_last_call_is_not_made(context_of: Any, reflections: Any) -> None:
    context, predict, _ = context_of(lambda name, values: FailedCall("AuthError: no"))
    lessons = Summarize().aggregate(reflections(40), context)
    assert lessons.lessons == ()
    assert [name for name, _ in predict.batches] == ["SummarizeExamples"]


@pytest.mark.parametrize("params", [{"shard_items": 1}, {"max_call_tokens": 10}, {"max_points": 0}])
def test_parameters_out_of_range_are_refused_by_name(
    params: dict[str, Any], context_of: Any, learner: Any, reflections: Any
) -> None:
    context, predict, _ = context_of(learner)
    with pytest.raises(ArgumentValueError) as caught:
        Summarize(**params).aggregate(reflections(9), context)
    assert caught.value.argument == next(iter(params))
    assert predict.batches == []
