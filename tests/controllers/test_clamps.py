from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.integers(0, 2000), st.integers(0, 300), st.integers(0, 5))
def test_an_iteration_of_the_budgets_size_can_be_paid(remaining, validation, children):
    view = replace(VIEW, remaining_rollouts=remaining, validation_size=validation, children=children)
    limit = budget_bound(view).limit
    cost = limit * (1 + children) + validation
    assert limit == 1 or cost <= remaining
    assert limit >= 1
    assert cost + 1 + children > remaining, "no smaller than it must be"


def test_without_a_budget_in_rollouts_nothing_is_clipped():
    assert budget_bound(VIEW) is None
