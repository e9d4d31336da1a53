"""Rules on validation scores: a target, and patience."""

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


@pytest.mark.parametrize(
    ("history", "updates", "unread", "stops"),
    [
        # Counted from the update of the last improvement.
        (((STUDENT, 0.5), (1, 0.6), (3, 0.6), (4, 0.55)), 4, 0, False),
        (((STUDENT, 0.5), (1, 0.6), (3, 0.6), (4, 0.55)), 5, 0, True),
        (((STUDENT, 0.5), (1, 0.6), (3, 0.6), (4, 0.61)), 5, 0, False),
        # Updates that validate nothing count.
        (((STUDENT, 0.5),), 2, 0, False),
        (((STUDENT, 0.5),), 3, 0, True),
        ((), 9, 0, False),
        # Updates under way do not.
        (((STUDENT, 0.5),), 4, 2, False),
        (((STUDENT, 0.5),), 5, 2, True),
    ],
)
def test_patience_counts_updates_without_improvement(
    history: tuple[tuple[int, float], ...], updates: int, unread: int, stops: bool
) -> None:
    reason = Patience(3).check(view(*history, updates=updates, unread=unread))
    assert (reason is not None) is stops
    assert reason is None or "in 3 updates" in reason


def test_small_steps_count_once_together_they_are_large_enough() -> None:
    climbing = [(number, 0.5 + number * 0.01) for number in range(STUDENT, 9)]
    assert Patience(4, min_delta=0.025).check(view(*climbing, updates=9)) is None
    assert Patience(2, min_delta=0.5).check(view(*climbing, updates=9)) is not None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 8), st.floats(0, 0.3))
def test_patience_ends_a_run_after_any_history(
    scores: list[float], updates: int, delta: float
) -> None:
    history = tuple(enumerate(scores, start=STUDENT))
    rule = Patience(updates, min_delta=delta)
    assert rule.check(view(*history, updates=len(scores) - 1 + updates)) is not None
    best = max(scores) + delta + 0.01
    assert rule.check(view(*history, (len(scores), best), updates=len(scores) + 1)) is None


@pytest.mark.parametrize(
    ("on", "problem"),
    [
        ("train", r"patience\.on .*minibatch.*rises on the examples"),
        ("heldout", "nothing that patience can wait on"),
    ],
)
def test_patience_on_other_scores_is_refused_with_the_reason(on: str, problem: str) -> None:
    with pytest.raises(ArgumentValueError, match=problem):
        Patience(3, on=on)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Target(float("nan")), "Target.score"),
        (lambda: Patience(0), "Patience.updates"),
        (lambda: Patience(2, min_delta=-0.1), "Patience.min_delta"),
    ],
)
def test_wrong_parameters_are_refused_by_name(build: Any, name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert caught.value.argument == name
