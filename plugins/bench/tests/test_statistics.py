"""Methods side by side: intervals, who is Pareto-best, and who gets a multiple."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_bench.statistics import Side, crossed_interval, mean_of, pareto_best, side_by_side
from combee_dspy.exceptions import ArgumentValueError

ZEROS = (0.0,) * 40


@dataclass(frozen=True)
class Ran:
    method: str
    seed: int = 0
    after: tuple[float, ...] = ZEROS
    seconds: float = 100.0
    before: tuple[float, ...] = ZEROS


def half(count: int = 20) -> tuple[float, ...]:
    return (1.0,) * count + (0.0,) * (40 - count)


def sides(*runs: Ran) -> list[Side[Ran]]:
    return side_by_side(runs, lambda first, own: sum(r.seconds for r in first) / sum(r.seconds for r in own))


def test_what_differs_from_seed_to_seed_widens_the_interval() -> None:
    same, apart = np.array([half(20)] * 6), np.array([half(4), half(36)] * 3)
    calm, wide = (crossed_interval(table, seed=3) for table in (same, apart))
    assert calm.mean == wide.mean == 0.5
    assert wide.high - wide.low > 1.5 * (calm.high - calm.low)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    hits = 0
    for trial in range(24):
        seeds, examples = generator.normal(0, 0.1, (8, 1)), generator.normal(0, 0.3, (1, 40))
        table = seeds + examples + generator.normal(0, 0.1, (8, 40))
        found = crossed_interval(table, seed=trial)
        hits += found.low <= 0.0 <= found.high
    # The bootstrap of 8 seeds is a little too narrow; one that ignored seeds would cover about two thirds.
    assert hits >= 20


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_pareto_best_are_those_that_nobody_dominates(points: dict[str, tuple[int, int]]) -> None:
    best = pareto_best({name: (cost, score) for name, (cost, score) in points.items()})
    assert best
    for name, (cost, score) in points.items():
        dominated = any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points.values())
        assert (name in best) != dominated


def test_what_is_not_known_takes_no_part() -> None:
    assert pareto_best({"a": (None, 1.0), "b": (3.0, 0.5)}) == ("b",)
    assert (mean_of([1.0, None]), mean_of([]), mean_of([1.0, 2.0])) == (None, None, 1.5)


def test_a_multiple_is_given_only_where_heldout_is_no_worse() -> None:
    base = Ran("gepa", after=half(20), seconds=800.0)
    reference, fast, bad = sides(base, Ran("combee", after=half(20)), Ran("mipro", after=half(4), seconds=10.0))
    assert reference.versus is None
    assert fast.versus is not None and bad.versus is not None
    assert fast.versus.times_faster == pytest.approx(8.0)
    assert (bad.versus.comparable, bad.versus.times_faster, str(bad.versus)) == (False, None, "not comparable")


def test_a_comparison_that_was_broken_off_uses_the_seeds_that_pair() -> None:
    one, two = sides(Ran("a", 0), Ran("b", 0), Ran("a", 1, half()))
    assert [run.seed for run in one.runs] == [run.seed for run in two.runs] == [0]
    assert one.heldout.mean == 0.0
    assert sides(Ran("a", 0), Ran("b", 1)) == []


def test_scores_of_other_examples_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match="do not pair"):
        sides(Ran("a", 0), Ran("a", 1, (1.0,)))
