"""A batch size that someone chose."""

from __future__ import annotations

import pytest

from combee_dspy.controllers import BatchView, Static
from combee_dspy.exceptions import ArgumentError
from combee_dspy.records import Measurement


def test_the_size_and_its_reason_stay_whatever_was_measured():
    view = BatchView(update=8, trainset_size=50, seen=200, measurements=(Measurement(8, 3.0),))
    decision = Static(8, "as in our earlier runs").plan(view)
    assert (decision.size, decision.fit, decision.clamps) == (8, None, ())
    assert "as in our earlier runs" in decision.reason


def test_it_is_clipped_to_the_trainset_and_to_what_the_budget_leaves():
    view = BatchView(update=0, trainset_size=50, remaining_rollouts=40, validation_size=10)
    decision = Static(80, "large").plan(view)
    assert decision.size == 15
    assert [(clamp.name, clamp.before, clamp.after) for clamp in decision.clamps] == [
        ("trainset", 80, 50),
        ("budget", 50, 15),
    ]
    assert "40 rollouts are left" in decision.clamps[1].reason


@pytest.mark.parametrize(
    ("size", "reason", "argument"),
    [(0, "why", "size"), (3, "  \n", "reason"), (3, None, "reason")],
)
def test_a_parameter_that_cannot_be_used_is_named(size, reason, argument):
    with pytest.raises(ArgumentError) as caught:
        Static(size, reason)
    assert caught.value.argument.endswith(argument)
