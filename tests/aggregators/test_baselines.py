"""The naive baseline."""

from __future__ import annotations

import pytest

from combee_dspy.aggregators import SingleCall
from combee_dspy.records import FailedCall
from tests.aggregators.doubles import World, learner, made


def test_a_single_call_sees_everything_and_writes_the_instruction():
    world = World.of(lambda name, inputs: {"new_instruction": "  Do better.\n"})
    lessons = world.run(SingleCall(), made(40))
    assert (lessons.rewrite, lessons.lessons) == ("Do better.", ())
    (call,) = world.service.calls
    assert call.name == "RewriteInstruction"
    assert len(call.records) == 40


@pytest.mark.parametrize(
    "answer", [FailedCall("E: x"), {"new_instruction": " "}, {"new_instruction": None}, {"x": 1}]
)
def test_a_single_call_that_fails_gives_no_rewrite(answer):
    lessons = World.of(lambda name, inputs: answer).run(SingleCall(), made(4))
    assert lessons.rewrite is None
    assert lessons.nodes[0].failed


def test_what_the_text_must_respect_is_said_to_the_call_that_writes_it():
    world = World.of(learner, notes="At most 90 tokens.")
    world.run(SingleCall(), made(4))
    assert world.service.calls[0].inputs["constraints"] == "At most 90 tokens."
