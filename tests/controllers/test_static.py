from __future__ import annotations

import pytest

from combee_dspy.controllers import BatchView, Static
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Measurement

VIEW = BatchView(iteration=1, trainset_size=50, workers=1, capacity=1, score_variance=0.0001)


def test_the_size_and_its_reason_are_kept_whatever_was_measured():
    decision = Static(8, "as in our earlier runs").plan(VIEW)
    assert (decision.size, decision.fit, decision.clamps) == (8, None, ())
    assert "as in our earlier runs" in decision.reason
    later = BatchView(iteration=9, trainset_size=50, seen=200, measurements=(Measurement(8, 3.0),))
    assert Static(8, "as in our earlier runs").plan(later).size == 8


def test_it_is_clipped_to_the_trainset_and_to_what_the_budget_leaves():
    decision = Static(80, "large").plan(
        BatchView(iteration=1, trainset_size=50, remaining_rollouts=40, validation_size=10)
    )
    assert decision.size == 15
    assert [(c.name, c.before, c.after) for c in decision.clamps] == [("trainset", 80, 50), ("budget", 50, 15)]
    assert "40 rollouts are left" in decision.clamps[1].reason


@pytest.mark.parametrize(
    ("size", "reason", "error", "argument"),
    [
        (0, "why", ArgumentValueError, "size"),
        (-3, "why", ArgumentValueError, "size"),
        (2.5, "why", ArgumentTypeError, "size"),
        (True, "why", ArgumentTypeError, "size"),
        (3, "", ArgumentValueError, "reason"),
        (3, "  \n", ArgumentValueError, "reason"),
        (3, None, ArgumentTypeError, "reason"),
    ],
)
@pytest.mark.parametrize("verb", [lambda s: s.validate(), lambda s: s.plan(VIEW)])
def test_bad_parameters_are_named_early_and_at_the_latest_when_it_plans(size, reason, error, argument, verb):
    controller = Static(size, reason)
    with pytest.raises(error) as caught:
        verb(controller)
    assert caught.value.argument == argument
