from __future__ import annotations

from typing import Any

import pytest

from combee_dspy.aggregators import SingleCall
from combee_dspy.events import NodeFinished, ReflectionTrimmed, ScanFinished, ScanStarted
from combee_dspy.records import FailedCall, Lessons, Reflection


def test_one_call_sees_everything_and_writes_the_instruction(context_of: Any, reflections: Any) -> None:
    context, predict, events = context_of(lambda name, values: {"new_instruction": "  Do better.\n"})
    lessons = SingleCall().aggregate(reflections(40), context)
    assert lessons.rewrite == "Do better."
    assert lessons.lessons == ()
    ((name, (values,)),) = predict.batches
    assert name == "RewriteInstruction"
    assert values["current_instruction"] == "Answer."
    assert len(values["examples_with_feedback"]) == 40
    assert [type(event) for event in events] == [ScanStarted, NodeFinished, ScanFinished]


@pytest.mark.parametrize("answer", [FailedCall("E: x"), {"new_instruction": " "}, {"new_instruction": None}, {"x": 1}])
def test_a_failed_call_gives_no_rewrite(answer: dict[str, Any] | FailedCall, context_of: Any, reflections: Any) -> None:
    context, _, _ = context_of(lambda name, values: answer)
    lessons = SingleCall().aggregate(reflections(4), context)
    assert lessons.rewrite is None
    assert lessons.nodes[0].failed


def test_no_reflections_need_no_call(context_of: Any) -> None:
    context, predict, _ = context_of(lambda name, values: {"new_instruction": "x"})
    assert SingleCall().aggregate([], context) == Lessons("answer")
    assert predict.batches == []


def test_a_token_limit_trims_with_events(context_of: Any) -> None:
    context, predict, events = context_of(lambda name, values: {"new_instruction": "x"})
    given = [Reflection(i, {"Feedback": "long " * 2_000}) for i in range(4)]
    SingleCall(max_call_tokens=3_000).aggregate(given, context)
    assert [event.action for event in events if isinstance(event, ReflectionTrimmed)] == ["trimmed"] * 4
    assert len(predict.batches[0][1][0]["examples_with_feedback"]) == 4


def test_what_the_text_must_respect_is_said_to_the_call_that_writes_it(context_of: Any, reflections: Any) -> None:
    context, predict, _ = context_of(lambda name, values: {"new_instruction": "x"}, notes="At most 90 tokens.")
    SingleCall().aggregate(reflections(4), context)
    assert predict.batches[0][1][0]["constraints"] == "At most 90 tokens."
