from __future__ import annotations

import pytest

from combee_dspy.controllers import BatchView, Static
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Measurement

VIEW = BatchView(update=0, trainset_size=50, workers=1, capacity=1, score_variance=0.0001)


def test_the_size_and_its_reason_are_kept_whatever_was_measured():
    decision = Static(8, "as in our earlier runs").plan(VIEW)
    assert (decision.size, decision.fit, decision.clamps) == (8, None, ())
    assert "as in our earlier runs" in decision.reason
    later = BatchView(update=8, trainset_size=50, seen=200, measurements=(Measurement(8, 3.0),))
    assert Static(8, "as in our earlier runs").plan(later).size == 8


def test_it_is_clipped_to_the_trainset_and_to_what_the_budget_leaves():
    decision = Static(80, "large").plan(
        BatchView(update=0, trainset_size=50, remaining_rollouts=40, validation_size=10)
    )
    assert decision.size == 15
    assert [(c.name, c.before, c.after) for c in decision.clamps] == [
        ("trainset", 80, 50),
        ("budget", 50, 15),
    ]
    assert "40 rollouts are left" in decision.clamps[1].reason


@pytest.mark.parametrize(
    ("size", "reason", "error"),
    [
        (0, "why", ArgumentValueError),
        (2.5, "why", ArgumentError),
        (3, "  \n", ArgumentValueError),
        (3, None, ArgumentTypeError),
    ],
)
def test_bad_parameters_are_named_when_it_is_made(size, reason, error):
    with pytest.raises(error) as caught:
        Static(size, reason)
    assert caught.value.argument.endswith("reason" if size == 3 else "size")
