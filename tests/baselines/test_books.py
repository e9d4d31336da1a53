"""The books of a run: the budget, the curve, and what counts as validated."""

from __future__ import annotations

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.baselines import Books, BudgetSpentError
from combee_dspy.costs import Ledger, LMCall
from combee_dspy.events import Event, IterationFinished, IterationStarted, RolloutFinished, ValidationFinished
from combee_dspy.records import Rollout

ROWS = ("v0", "v1", "v2")


class World:
    def __init__(self, limit: int = 100) -> None:
        self.events: list[Event] = []
        self.now = 0.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.books = Books(self.events.append, self.ledger, frozenset({"t0"}), frozenset(ROWS), limit)

    def roll(self, candidate: str, row: str, score: float, program: dspy.Module | None = None) -> None:
        self.books.begin()
        self.now += 1.0
        self.ledger.finish(LMCall("", "task", "embedded/x", 10, 5), self.ledger.begin("task", "embedded/x"))
        self.books.finish(Rollout(row, None, None, (), score), {"p": candidate}, candidate, program)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def test_a_candidate_is_validated_once_every_row_was_run_in_any_order():
    world = World()
    world.roll("a", "v2", 1.0)
    world.roll("a", "t0", 0.0)
    world.roll("a", "v0", 0.0)
    assert not world.books.curve
    world.roll("a", "v1", 1.0)
    (point,) = world.books.curve
    assert (point.rollouts, point.tokens, point.seconds) == (4, 60, 4.0)
    assert point.validation == point.best == pytest.approx(2 / 3)
    (told,) = world.of(ValidationFinished)
    assert (told.index, told.candidate_id, told.best, told.rollouts) == (0, "a", True, 4)


def test_a_row_that_is_run_again_counts_once_and_changes_no_score():
    world = World()
    for row in ROWS:
        world.roll("a", row, 1.0)
    world.roll("a", "v0", 0.0)
    assert [point.validation for point in world.books.curve] == [1.0]
    assert world.books.rollouts == 4


def test_training_rollouts_are_told_apart_from_validation_and_parents_from_children():
    world = World()
    world.roll("a", "t0", 0.0)
    for row in ROWS:
        world.roll("a", row, 0.0)
    world.roll("a", "t0", 0.0)
    told = [(event.split, event.purpose) for event in world.of(RolloutFinished)]
    validation = [("validation", "validation")] * 3
    assert told == [("train", "child"), *validation, ("train", "parent")]
    assert len({event.rollout_id for event in world.of(RolloutFinished)}) == 5


def test_each_validation_ends_an_iteration_and_the_seed_has_none():
    world = World()
    for candidate, score in (("a", 0.0), ("b", 1.0), ("c", 0.5)):
        for row in ROWS:
            world.roll(candidate, row, score)
    assert [event.iteration for event in world.of(IterationStarted)] == [1, 2, 3]
    ended = world.of(IterationFinished)
    assert [(event.iteration, event.accepted, event.best_score) for event in ended] == [(1, True, 1.0), (2, False, 1.0)]
    assert [event.rollouts for event in ended] == [6, 9]
    assert ended[-1].costs["total"]["calls"] == 9


def test_the_first_of_equally_good_programs_is_the_best():
    world = World()
    one, two, three = (dspy.Predict("q -> a") for _ in range(3))
    for candidate, score, program in (("a", 0.0, one), ("b", 1.0, two), ("c", 1.0, three)):
        for row in ROWS:
            world.roll(candidate, row, score, program)
    assert world.books.best() is two
    assert world.books.validation_of("b") == (1, 1.0)
    assert world.books.validation_of("unknown") is None


def test_nothing_is_best_before_a_validation():
    world = World()
    world.roll("a", "v0", 1.0, dspy.Predict("q -> a"))
    assert world.books.best() is None


def test_the_budget_admits_no_rollout_beyond_it():
    world = World(limit=2)
    world.roll("a", "t0", 0.0)
    world.roll("a", "t0", 0.0)
    assert world.books.left == 0
    with pytest.raises(BudgetSpentError):
        world.books.begin()
    assert world.books.spent
    assert world.books.rollouts == 2


def test_a_batch_that_the_budget_does_not_cover_is_refused_whole():
    world = World(limit=3)
    world.books.require(3)
    world.roll("a", "t0", 0.0)
    with pytest.raises(BudgetSpentError, match="2 rollouts are left, 3 were asked for"):
        world.books.require(3)


def test_optimizers_that_go_on_after_errors_do_not_go_on_after_the_budget():
    assert not issubclass(BudgetSpentError, Exception)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("t0", *ROWS)), st.floats(0, 1)), max_size=60))
def test_the_curve_never_falls_in_cost_and_its_best_is_the_best_so_far(rolls):
    world = World()
    for candidate, row, score in rolls:
        world.roll(candidate, row, score)
    curve = world.books.curve
    for number, point in enumerate(curve):
        assert point.best == max(one.validation for one in curve[: number + 1])
        assert number == 0 or (curve[number - 1].rollouts < point.rollouts and curve[number - 1].tokens < point.tokens)
    assert len(curve) == len(world.of(ValidationFinished)) == len({point.candidate_id for point in curve})
    assert world.books.rollouts == len(rolls) == len(world.of(RolloutFinished))
