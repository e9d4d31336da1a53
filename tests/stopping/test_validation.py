from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.stopping import Patience, RunView, Target

STUDENT = -1


def view(*history: tuple[int, float], updates: int = 0, unread: int = 0) -> RunView:
    return RunView(updates=updates, unread=unread, validation_history=history)


def test_a_target_is_reached_by_the_best_candidate() -> None:
    rule = Target(0.8)
    assert rule.check(view()) is None
    assert rule.check(view((STUDENT, 0.5), (0, 0.79))) is None
    reached = view((STUDENT, 0.5), (0, 0.8), (1, 0.1))
    assert rule.check(reached) == "the target is reached: a validation score of 0.8 of 0.8"


def test_patience_counts_updates_since_the_last_improvement() -> None:
    rule = Patience(3)
    history = ((STUDENT, 0.5), (1, 0.6), (3, 0.6), (4, 0.55))
    assert rule.check(view(*history, updates=4)) is None
    reason = rule.check(view(*history, updates=5))
    assert reason is not None
    assert "in 3 updates" in reason
    assert "0.6" in reason
    assert rule.check(view(*history, (4, 0.61), updates=5)) is None


def test_updates_that_validate_nothing_count() -> None:
    assert Patience(3).check(view((STUDENT, 0.5), updates=2)) is None
    assert Patience(3).check(view((STUDENT, 0.5), updates=3)) is not None
    assert Patience(3).check(view(updates=9)) is None


def test_updates_under_way_are_no_updates_without_improvement() -> None:
    assert Patience(3).check(view((STUDENT, 0.5), updates=4, unread=2)) is None
    assert Patience(3).check(view((STUDENT, 0.5), updates=5, unread=2)) is not None


def test_small_steps_count_once_together_they_are_large_enough() -> None:
    climbing = [(n, 0.5 + n * 0.01) for n in range(STUDENT, 9)]
    assert Patience(4, min_delta=0.025).check(view(*climbing, updates=9)) is None
    assert Patience(2, min_delta=0.5).check(view(*climbing, updates=9)) is not None
    assert Patience(2).check(view((STUDENT, 0.5), (0, 0.5), (1, 0.5), updates=2)) is not None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 8), st.floats(0, 0.3))
def test_patience_ends_a_run_after_any_history(
    scores: list[float], updates: int, delta: float
) -> None:
    history = tuple(enumerate(scores, start=STUDENT))
    rule = Patience(updates, min_delta=delta)
    assert rule.check(view(*history, updates=len(scores) - 1 + updates)) is not None
    best = max(scores) + delta + 0.01
    assert rule.check(view(*history, (len(scores), best), updates=len(scores) + 1)) is None


def test_patience_on_the_training_score_is_refused_and_says_why() -> None:
    with pytest.raises(
        ArgumentValueError, match=r"patience\.on .*minibatch.*rises on the examples"
    ):
        Patience(3, on="train")
    with pytest.raises(ArgumentValueError, match="nothing that patience can wait on"):
        Patience(3, on="heldout")


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Target("high"), "Target.score"),
        (lambda: Target(float("nan")), "Target.score"),
        (lambda: Patience(0), "Patience.updates"),
        (lambda: Patience(2.5), "Patience.updates"),
        (lambda: Patience(2, min_delta=-0.1), "Patience.min_delta"),
        (lambda: Patience(2, min_delta=float("inf")), "Patience.min_delta"),
    ],
)
def test_wrong_parameters_are_refused_by_name(build: Any, name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert caught.value.argument == name


def test_rules_compose() -> None:
    either = Target(0.9) | Patience(2)
    both = Target(0.9) & Patience(2)
    stale, reached = view((STUDENT, 0.5), updates=5), view((STUDENT, 0.95), updates=1)
    done = view((STUDENT, 0.95), updates=5)
    assert (either.check(stale), either.check(reached)) == (
        Patience(2).check(stale),
        Target(0.9).check(reached),
    )
    assert both.check(stale) is None
    assert both.check(reached) is None
    assert "target" in str(both.check(done))
    assert "patience" in str(both.check(done))
