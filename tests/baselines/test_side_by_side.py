"""Methods side by side: intervals, who is Pareto-best, and who gets a multiple."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.bench.side_picture import compare_svg
from combee_dspy.bench.side_statistics import RunFigures, crossed_interval, pareto_best, summarize
from combee_dspy.evaluation import paired_difference
from combee_dspy.exceptions import ArgumentValueError

ZEROS = (0.0,) * 40


def figures(method: str, seed: int = 0, after=ZEROS, seconds=100.0, tokens=1_000, dollars=1.0) -> RunFigures:
    return RunFigures(method, seed, ZEROS, tuple(after), seconds, tokens, dollars, 200, 0.5)


def half(count: int = 20) -> tuple[float, ...]:
    return (1.0,) * count + (0.0,) * (40 - count)


def test_with_one_seed_it_is_the_bootstrap_over_examples():
    scores = np.array([half(12)])
    found = crossed_interval(scores, seed=1)
    plain = paired_difference(ZEROS, half(12), seed=2)
    assert found.mean == pytest.approx(0.3)
    assert (found.low, found.high) == (pytest.approx(plain.low, abs=0.02), pytest.approx(plain.high, abs=0.02))


def test_what_differs_from_seed_to_seed_widens_the_interval():
    same = np.array([half(20)] * 6)
    apart = np.array([half(4), half(36)] * 3)
    assert same.mean() == apart.mean()
    calm, wide = (crossed_interval(table, seed=3) for table in (same, apart))
    assert wide.high - wide.low > 1.5 * (calm.high - calm.low)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(5)
    hits = 0
    for trial in range(120):
        seeds, examples = generator.normal(0, 0.1, (8, 1)), generator.normal(0, 0.3, (1, 40))
        table = seeds + examples + generator.normal(0, 0.1, (8, 40))
        found = crossed_interval(table, seed=trial)
        hits += found.low <= 0.0 <= found.high
    # The bootstrap of 8 seeds is a little too narrow; one that ignored seeds would cover about two thirds.
    assert hits >= 100


def test_an_empty_table_is_refused():
    with pytest.raises(ArgumentValueError):
        crossed_interval(np.zeros((0, 4)), seed=0)


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_pareto_best_are_those_that_nobody_dominates(points):
    best = pareto_best(points)
    assert best
    for name, (cost, score) in points.items():
        dominated = any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points.values())
        assert (name in best) != dominated


def test_a_point_without_a_cost_takes_no_part():
    assert pareto_best({"a": (None, 1.0), "b": (3.0, 0.5)}) == ("b",)


def test_a_multiple_is_given_only_where_heldout_is_no_worse():
    base = figures("gepa", after=half(20), seconds=800.0)
    equal = figures("combee", after=half(20), seconds=100.0)
    worse = figures("mipro", after=half(4), seconds=10.0)
    reference, fast, bad = summarize([base, equal, worse])
    assert reference.versus is None
    assert fast.versus.times_faster == pytest.approx(8.0)
    assert (bad.versus.comparable, bad.versus.times_faster) == (False, None)


def test_multiples_are_of_all_seeds_together():
    runs = [figures("gepa", seed, half(), seconds=100.0 * (seed + 1)) for seed in range(2)]
    runs += [figures("combee", seed, half(), seconds=10.0) for seed in range(2)]
    assert summarize(runs)[1].versus.times_faster == pytest.approx(15.0)


def test_the_best_on_each_axis_are_marked():
    cheap = figures("cheap", after=half(10), seconds=10.0, tokens=9_000)
    good = figures("good", after=half(20), seconds=50.0, tokens=2_000)
    bad = figures("bad", after=half(8), seconds=60.0, tokens=9_500)
    marks = [one.best_on for one in summarize([cheap, good, bad])]
    assert marks == [("seconds",), ("seconds", "tokens", "dollars"), ()]


def test_what_costs_nothing_marks_nobody_and_what_is_unknown_is_no_zero():
    free = summarize([figures("a", dollars=0.0), figures("b", dollars=0.0)])
    assert not any("dollars" in one.best_on for one in free)
    unknown = summarize([figures("a", dollars=None), figures("b", dollars=2.0)])
    assert unknown[0].dollars is None
    assert [one.best_on.count("dollars") for one in unknown] == [0, 1]


def test_a_method_that_stands_alone_is_best_at_nothing():
    (alone,) = summarize([figures("a", after=half())])
    assert alone.best_on == ()
    assert alone.versus is None


def test_a_comparison_that_was_broken_off_uses_the_seeds_that_pair():
    runs = [figures("a", 0), figures("b", 0), figures("a", 1, half())]
    one, two = summarize(runs)
    assert one.seeds == two.seeds == (0,)
    assert one.heldout.mean == 0.0


def test_runs_that_do_not_pair_are_refused():
    with pytest.raises(ArgumentValueError, match="do not pair"):
        summarize([figures("a", 0), figures("b", 1)])
    with pytest.raises(ArgumentValueError, match="do not pair"):
        summarize([figures("a"), replace(figures("b"), after=(1.0,))])


def test_the_picture_is_well_formed_and_shows_label_points_and_marks():
    worse = figures('<b>&"', after=half(4), seconds=500.0, tokens=2_000)
    runs = [figures("gepa", after=half(20), seconds=400.0), worse]
    text = compare_svg(summarize(runs), "simulated service & no <model>")
    root = ElementTree.fromstring(text)  # noqa: S314 - our own text
    said = "".join(root.itertext())
    assert "simulated service & no <model>" in said
    assert '<b>&"' in said
    assert said.count("Pareto-best") == 3
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(circles) == 6
    assert sum(one.get("fill") != "#ffffff" for one in circles) == 3


def test_a_panel_without_costs_is_left_out():
    text = compare_svg(summarize([figures("a", dollars=None), figures("b", dollars=0.0)]), "x")
    assert ">seconds<" in text
    assert ">dollars<" not in text
