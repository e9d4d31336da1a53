"""Methods side by side: intervals, who is Pareto-best, and who gets a multiple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slow import slow_but

from combee_bench.statistics import (
    Side,
    crossed_interval,
    fewest_examples,
    mean_of,
    paired_interval,
    pareto_best,
    side_by_side,
)
from combee_dspy.exceptions import ArgumentValueError

ZEROS = (0.0,) * 40


@dataclass(frozen=True)
class Ran:
    method: str
    seed: int = 0
    after: tuple[float, ...] = ZEROS
    seconds: float = 100.0

    @property
    def before(self) -> tuple[float, ...]:
        return (0.0,) * len(self.after)


def half(count: int = 20) -> tuple[float, ...]:
    return (1.0,) * count + (0.0,) * (40 - count)


def sides(*runs: Ran, margin: float = 10.0) -> list[Side[Ran]]:
    def times(first: Sequence[Ran], own: Sequence[Ran]) -> float:
        return sum(run.seconds for run in first) / sum(run.seconds for run in own)

    return side_by_side(runs, times, margin=margin)


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
        result = crossed_interval(table, seed=trial)
        hits += result.low <= 0.0 <= result.high
    # The bootstrap of 8 seeds is a little too narrow; one that ignored seeds would cover about two
    # thirds.
    assert hits >= 20


@given(
    st.dictionaries(
        st.text(max_size=3), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8
    )
)
def test_the_pareto_best_are_those_that_nobody_dominates(
    points: dict[str, tuple[int, int]],
) -> None:
    best = pareto_best({name: (cost, score) for name, (cost, score) in points.items()})
    assert best
    for name, (cost, score) in points.items():
        dominated = any(
            c <= cost and s >= score and (c, s) != (cost, score) for c, s in points.values()
        )
        assert (name in best) != dominated


def test_what_is_not_known_takes_no_part() -> None:
    assert pareto_best({"a": (None, 1.0), "b": (3.0, 0.5)}) == ("b",)
    assert (mean_of([1.0, None]), mean_of([]), mean_of([1.0, 2.0])) == (None, None, 1.5)


def test_a_multiple_is_given_only_where_heldout_is_no_worse() -> None:
    base = Ran("gepa", after=half(20), seconds=800.0)
    reference, fast, bad = sides(
        base, Ran("combee", after=half(20)), Ran("mipro", after=half(4), seconds=10.0)
    )
    assert reference.versus is None
    assert fast.versus is not None and bad.versus is not None
    assert fast.versus.times_faster == pytest.approx(8.0)
    assert (bad.versus.comparable, bad.versus.times_faster, str(bad.versus)) == (
        False,
        None,
        "not comparable",
    )


def test_too_few_examples_give_no_multiple_whatever_they_show() -> None:
    """One example that both got right, which a bootstrap cannot tell from certainty, and twenty
    that all were won.
    """
    (_, same), (_, won) = (
        sides(
            Ran("gepa", after=(0.0,) * n),
            Ran("combee", after=(score,) * n, seconds=10.0),
            margin=2.0,
        )
        for n, score in ((1, 0.0), (20, 1.0))
    )
    assert str(same.versus) == str(won.versus) == "not comparable"
    assert [fewest_examples(margin) for margin in (5.0, 2.0, 0.5)] == [73, 189, 765]


@pytest.mark.parametrize(
    ("margin", "differs"),
    slow_but([(2.0, True)], [(5.0, False), (2.0, False), (0.5, False), (2.0, True)]),
)
def test_the_fewest_examples_are_the_fewest(margin: float, differs: bool) -> None:
    n = fewest_examples(margin)
    (_, one), (_, other) = (
        sides(
            Ran("a", after=(0.0,) * size),
            Ran("b", after=(0.0,) * (size - 1) + (float(differs),)),
            margin=margin,
        )
        for size in (n - 1, n)
    )
    assert one.versus is not None and other.versus is not None
    assert (one.versus.comparable, other.versus.comparable) == (False, True)


def test_the_interval_for_one_seed_is_tangos() -> None:
    """12 pairs won, 2 lost, 36 alike: Tango's limits solve (0.2 - d)² · 50 = 1.96² · (2·p21(d) +
    d·(1 - d)).
    """
    result = paired_interval(np.array([[1.0] * 12 + [-1.0] * 2 + [0.0] * 36]))
    assert (result.mean, result.low, result.high) == pytest.approx((0.2, 0.0611, 0.3447), abs=1e-4)
    swapped = paired_interval(np.array([[-1.0] * 12 + [1.0] * 2 + [0.0] * 36]))
    assert (swapped.low, swapped.high) == pytest.approx((-result.high, -result.low))


def test_what_is_no_worse_by_luck_is_called_so_no_more_often_than_one_time_in_forty() -> None:
    """The bootstrap's false non-inferiority was 6 % at 48 examples with 10 % discordance, and 20 %
    at 20.
    """
    generator = np.random.default_rng(2)
    for n, differ in ((80, 0.1), (200, 0.1)):
        draws = generator.choice(
            [1.0, -1.0, 0.0], (400, 1, n), p=[differ / 2 - 0.025, differ / 2 + 0.025, 1 - differ]
        )
        assert sum(paired_interval(draw).low > -0.05 for draw in draws) <= 18  # 10 expected


def test_seeds_that_differ_widen_the_paired_interval() -> None:
    calm = paired_interval(np.array([[0.0] * 200] * 4))
    wide = paired_interval(np.array([[0.1] * 200, [-0.1] * 200] * 2))
    assert wide.low < -0.1 < calm.low


def test_a_comparison_that_was_broken_off_uses_the_seeds_that_pair() -> None:
    one, two = sides(Ran("a", 0), Ran("b", 0), Ran("a", 1, half()))
    assert [run.seed for run in one.runs] == [run.seed for run in two.runs] == [0]
    assert one.heldout.mean == 0.0
    assert sides(Ran("a", 0), Ran("b", 1)) == []


def test_scores_of_other_examples_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match="do not pair"):
        sides(Ran("a", 0), Ran("a", 1, (1.0,)))
