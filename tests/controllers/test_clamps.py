from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.aggregators import ParallelScan, SingleCall, Union
from combee_dspy.controllers import BatchView
from combee_dspy.controllers._clamps import (
    Bound,
    apply,
    budget_bound,
    capacity_bound,
    context_bound,
    trainset_bound,
    updates_bound,
    variance_bound,
)
from combee_dspy.engine.views import call_limits

VIEW = BatchView(iteration=1, trainset_size=240, workers=8)


@given(st.integers(1, 1000), st.lists(st.integers(1, 1000) | st.none(), max_size=6))
def test_the_size_ends_at_the_smallest_limit_and_each_change_is_kept(size, limits):
    bounds = [None if limit is None else Bound(f"b{i}", limit, "why") for i, limit in enumerate(limits)]
    after, clamps = apply(size, bounds)
    assert after == min([size, *(limit for limit in limits if limit is not None)])
    path = [size, *(clamp.after for clamp in clamps)]
    assert [clamp.before for clamp in clamps] == path[:-1]
    assert path == sorted(path, reverse=True)
    assert len(set(path)) == len(path)


def test_trainset_and_updates():
    assert trainset_bound(VIEW).limit == 240
    assert updates_bound(VIEW, 6).limit == 40
    assert updates_bound(replace(VIEW, trainset_size=4), 6).limit == 1


@pytest.mark.parametrize(("workers", "capacity", "limit"), [(8, None, 32), (8, 3, 12), (8, 100, 32), (1, 0, 4)])
def test_capacity_is_what_really_runs_at_once(workers, capacity, limit):
    assert capacity_bound(replace(VIEW, workers=workers, capacity=capacity), 4).limit == limit


def test_context_counts_two_copies_over_the_square_root_of_shards():
    bound = context_bound(replace(VIEW, record_tokens=100.0, call_tokens=1600))
    assert bound.limit == 64
    shards = math.isqrt(bound.limit)
    assert 2 * bound.limit / shards * 100 <= 1600


@pytest.mark.parametrize(("record", "call"), [(None, 1000), (100.0, None), (0.0, 1000), (math.nan, 1000)])
def test_context_limits_nothing_where_it_was_not_measured(record, call):
    assert context_bound(replace(VIEW, record_tokens=record, call_tokens=call)) is None


@pytest.mark.parametrize(
    ("fan_in", "merge", "record", "limit"),
    [(16, None, 100.0, None), (16, 32, 100.0, 256), (16, 32, 101.0, 240), (16, 4, 500.0, 6), (16, 32, 1e6, 32)],
)
def test_context_counts_the_lists_that_one_call_merges(fan_in, merge, record, limit):
    view = replace(VIEW, record_tokens=record, call_tokens=1600, fan_in=fan_in, merge_fan_in=merge)
    bound = context_bound(view)
    assert (bound.limit if bound else None) == limit


def test_context_keeps_at_least_one_and_never_overflows():
    assert context_bound(replace(VIEW, record_tokens=1e6, call_tokens=10)).limit == 1
    assert context_bound(replace(VIEW, record_tokens=1e-300, call_tokens=10**9)).limit == 240


@pytest.mark.parametrize(("variance", "limit"), [(0.25, 100), (0.02, 8), (0.0001, 3)])
def test_variance_asks_for_a_standard_error_of_a_twentieth(variance, limit):
    bound = variance_bound(replace(VIEW, score_variance=variance), 3)
    assert bound.limit == limit
    assert limit == 3 or math.sqrt(variance / limit) <= 0.05


@pytest.mark.parametrize("variance", [None, 0.0, -1.0, math.nan, math.inf])
def test_variance_limits_nothing_where_it_says_nothing(variance):
    assert variance_bound(replace(VIEW, score_variance=variance), 3) is None


@given(st.integers(0, 2000), st.integers(0, 300), st.integers(0, 5), st.integers(1, 8), st.none() | st.integers(1, 20))
def test_an_iteration_of_the_budgets_size_can_be_paid(remaining, validation, children, groups, screen):
    view = replace(
        VIEW,
        remaining_rollouts=remaining,
        validation_size=validation,
        children=children,
        groups=groups,
        screen=screen,
    )
    limit = budget_bound(view).limit
    most = groups * max(1, children)

    def cost(size):
        checked = size if screen is None else min(size, screen)
        return groups * size + groups * children * checked

    assert limit >= 1
    assert limit == 1 or cost(limit) + validation <= remaining
    if remaining >= cost(3) + most * validation:
        assert cost(limit) + most * validation <= remaining, "every child may pass"
        assert cost(limit + 1) + most * validation > remaining, "no smaller than it must be"


def test_what_cannot_pay_for_every_validation_is_spent_on_one_large_batch():
    """Not on a tail of single examples: 3 rollouts an example, 2 validations of 100 at most."""
    sizes, remaining = [], 290
    while remaining >= 103:
        sizes.append(budget_bound(replace(VIEW, remaining_rollouts=remaining, validation_size=100, children=2)).limit)
        remaining -= 3 * sizes[-1]
    assert sizes == [30, 33]


def test_the_minibatches_of_one_iteration_share_what_is_left():
    view = replace(VIEW, remaining_rollouts=190, validation_size=10, children=1)
    assert budget_bound(view).limit == 90
    assert budget_bound(replace(view, groups=8)).limit == (190 - 80) // 16


def test_without_a_budget_in_rollouts_nothing_is_clipped():
    assert budget_bound(VIEW) is None


@pytest.mark.parametrize("params", [{}, {"max_call_tokens": 6_000}, {"copies": 3}, {"merge_fan_in": 4}, {"fan_in": 4}])
def test_a_scan_of_as_many_as_the_context_allows_has_two_levels(params):
    scan = ParallelScan(**params)
    limits = call_limits(scan)
    view = BatchView(iteration=1, trainset_size=10_000, record_tokens=10.0, **limits._asdict())
    limit = context_bound(view).limit
    shards = scan.reads(limit)
    assert shards <= limits.merge_fan_in < scan.reads(2 * limit)


@pytest.mark.parametrize("aggregator", [Union(), SingleCall()], ids=str)
def test_what_merges_nothing_has_no_lists_to_count(aggregator):
    limits = call_limits(aggregator)
    assert limits.merge_fan_in is None
    assert limits.fan_in == getattr(aggregator, "fan_in", None)
