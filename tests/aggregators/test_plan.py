from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.aggregators import ScanPlan, TokenBudget, plan_scan
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.shuffle import effective_copies
from combee_dspy.streams import derive

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 13, 31, 97, 240, 512, 997, 4_099, 10_000]


def check(plan: ScanPlan, n: int, fan_in: int) -> None:
    assert len(plan.levels[-1]) == 1
    assert plan.below(len(plan.levels), 0) == tuple(range(n))
    width = n
    for level, nodes in enumerate(plan.levels):
        sources = [source for node in nodes for source in node.sources]
        assert set(sources) == set(range(width))
        if level:
            assert len(sources) == width
        assert all(1 <= len(node.sources) <= fan_in for node in nodes)
        width = len(nodes)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("fan_in", [2, 3, 8, 32, 200])
def test_every_reflection_reaches_the_root_within_the_fan_in(n: int, fan_in: int) -> None:
    check(plan_scan(n, 2, fan_in, derive(0, n)), n, fan_in)


@given(
    n=st.integers(1, 400),
    copies=st.integers(1, 4),
    fan_in=st.integers(2, 40),
    placement=st.sampled_from(["distinct", "plain"]),
    window=st.none() | st.integers(1, 6),
)
def test_plan_invariants(n: int, copies: int, fan_in: int, placement: str, window: int | None) -> None:
    plan = plan_scan(n, copies, fan_in, derive(n), placement, window=window)  # type: ignore[arg-type]
    check(plan, n, fan_in)
    assert sum(len(node.sources) for node in plan.levels[0]) == n * plan.copies


@given(n=st.integers(1, 2_000), copies=st.integers(1, 4), fan_in=st.integers(2, 64))
def test_levels_are_the_fewest_that_the_fan_in_allows(n: int, copies: int, fan_in: int) -> None:
    plan = plan_scan(n, copies, fan_in, derive(0))
    # Independent of the planner: the fewest shards, by trying them one after another.
    k = math.isqrt(n)
    while -(-n * effective_copies(copies, k) // k) > fan_in:
        k += 1
    levels = 1
    reach = 1
    while reach < k:
        reach *= fan_in
        levels += 1
    assert len(plan.levels[0]) == k
    assert len(plan.levels) == levels


def test_nothing_to_scan_is_an_empty_plan() -> None:
    plan = plan_scan(0, 2, 32, derive(0))
    assert plan.levels == ()
    assert plan.calls_per_level == ()
    assert plan.draw() == "0 reflections: no call"


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("placement", ["distinct", "plain"])
def test_fewer_than_four_are_one_call_with_each_once(n: int, placement: str) -> None:
    plan = plan_scan(n, 2, 32, derive(0), placement)  # type: ignore[arg-type]
    assert plan.calls_per_level == (1,)
    assert sorted(plan.levels[0][0].sources) == list(range(n))


@pytest.mark.parametrize(("n", "k", "largest"), [(4, 2, 2), (9, 3, 6), (40, 6, 14), (100, 10, 20), (240, 15, 32)])
def test_two_levels_as_in_the_paper(n: int, k: int, largest: int) -> None:
    plan = plan_scan(n, 2, 32, derive(0))
    assert plan.calls_per_level == (k, 1)
    assert max(len(node.sources) for node in plan.levels[0]) == largest


def test_ten_thousand_reflections_need_three_levels() -> None:
    plan = plan_scan(10_000, 2, 32, derive(0))
    assert plan.calls_per_level == (625, 20, 1)


def test_a_node_with_one_child_needs_no_call() -> None:
    from combee_dspy.aggregators import PlanNode

    nodes = (PlanNode((0, 1)), PlanNode((2,)))
    plan = ScanPlan(3, 1, ((PlanNode((0,)), PlanNode((1,)), PlanNode((2,))), nodes, (PlanNode((0, 1)),)))
    assert plan.calls_per_level == (3, 1, 1)


def test_long_reflections_make_shards_smaller() -> None:
    tokens = tuple(100 if index % 10 else 900 for index in range(100))
    plan = plan_scan(100, 2, 32, derive(0), budget=TokenBudget(tokens, 2_000))
    check(plan, 100, 32)
    assert all(sum(tokens[source] for source in node.sources) <= 2_000 for node in plan.levels[0])
    # One long record in ten must not turn every shard into two records.
    assert len(plan.levels[0]) < 60


def test_a_budget_that_is_no_limit_changes_nothing() -> None:
    free = plan_scan(60, 2, 32, derive(0))
    assert plan_scan(60, 2, 32, derive(0), budget=TokenBudget((1,) * 60, 10_000)) == free


def test_a_reflection_above_the_budget_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="Split or trim"):
        plan_scan(4, 2, 32, derive(0), budget=TokenBudget((10, 10, 10, 99), 50))


@pytest.mark.parametrize(("fan_in", "merge_fan_in", "levels"), [(32, 4, (10, 3, 1)), (16, 32, (13, 1))])
def test_merges_can_have_a_fan_in_of_their_own(fan_in: int, merge_fan_in: int, levels: tuple[int, ...]) -> None:
    assert plan_scan(100, 2, fan_in, derive(0), merge_fan_in=merge_fan_in).calls_per_level == levels


def test_a_merge_of_less_than_two_lists_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="merge_fan_in"):
        plan_scan(4, 2, 8, derive(0), merge_fan_in=1)


@pytest.mark.parametrize("fan_in", [1, 0, -3])
def test_a_fan_in_below_two_is_refused(fan_in: int) -> None:
    with pytest.raises(ArgumentValueError, match="two items"):
        plan_scan(4, 2, fan_in, derive(0))


def test_the_drawing_shows_levels_and_sizes() -> None:
    assert plan_scan(9, 2, 32, derive(0)).draw() == (
        "level 2: 1 node  [3]\nlevel 1: 3 nodes  [6] [6] [6]\n9 reflections × 2 copies"
    )
