from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.controllers import BatchView, _clamps

VIEW = BatchView(update=0, trainset_size=240, workers=8)


@given(st.integers(1, 1000), st.lists(st.integers(1, 1000) | st.none(), max_size=6))
def test_the_size_ends_at_the_smallest_limit_and_each_change_is_kept(size, limits):
    bounds = [None if limit is None else _clamps.Bound(f"b{i}", limit, "why") for i, limit in enumerate(limits)]
    after, clamps = _clamps.apply(size, bounds)
    assert after == min([size, *(limit for limit in limits if limit is not None)])
    path = [size, *(clamp.after for clamp in clamps)]
    assert [clamp.before for clamp in clamps] == path[:-1]
    assert path == sorted(path, reverse=True)
    assert len(set(path)) == len(path)


def test_trainset_and_updates():
    assert _clamps.trainset(VIEW).limit == 240
    assert _clamps.updates(VIEW, 6).limit == 40
    assert _clamps.apply(9, [_clamps.updates(replace(VIEW, trainset_size=4), 6)])[0] == 1


@pytest.mark.parametrize(("workers", "capacity", "limit"), [(8, None, 32), (8, 3, 12), (8, 100, 32), (1, 0, 4)])
def test_capacity_is_what_really_runs_at_once(workers, capacity, limit):
    assert _clamps.capacity(replace(VIEW, workers=workers, capacity=capacity), 4).limit == limit


def test_context_counts_two_copies_over_the_square_root_of_shards():
    bound = _clamps.context(replace(VIEW, record_tokens=100.0, call_tokens=1600))
    assert bound.limit == 64
    assert 2 * bound.limit / math.isqrt(bound.limit) * 100 <= 1600


@pytest.mark.parametrize(("record", "call"), [(None, 1000), (100.0, None), (0.0, 1000), (math.nan, 1000)])
def test_context_limits_nothing_where_it_was_not_measured(record, call):
    assert _clamps.context(replace(VIEW, record_tokens=record, call_tokens=call)) is None


@pytest.mark.parametrize(
    ("fan_in", "merge", "record", "limit"),
    [(16, None, 100.0, None), (16, 32, 100.0, 256), (16, 32, 101.0, 240), (16, 4, 500.0, 6), (16, 32, 1e6, 32)],
)
def test_context_counts_the_lists_that_one_call_merges(fan_in, merge, record, limit):
    view = replace(VIEW, record_tokens=record, call_tokens=1600, fan_in=fan_in, merge_fan_in=merge)
    bound = _clamps.context(view)
    assert (bound.limit if bound else None) == limit


def test_context_keeps_at_least_one_and_never_overflows():
    tight = _clamps.context(replace(VIEW, record_tokens=1e6, call_tokens=10))
    assert _clamps.apply(9, [tight])[0] == 1
    assert _clamps.context(replace(VIEW, record_tokens=1e-300, call_tokens=10**9)).limit == 240


@pytest.mark.parametrize(("variance", "limit"), [(0.25, 100), (0.02, 8), (0.0001, 3)])
def test_variance_asks_for_a_standard_error_of_a_twentieth(variance, limit):
    assert _clamps.variance(replace(VIEW, score_variance=variance), 3).limit == limit
    assert limit == 3 or math.sqrt(variance / limit) <= 0.05


@pytest.mark.parametrize("variance", [None, 0.0, -1.0, math.nan, math.inf])
def test_variance_limits_nothing_where_it_says_nothing(variance):
    assert _clamps.variance(replace(VIEW, score_variance=variance), 3) is None


@given(st.integers(0, 2000), st.integers(0, 300), st.integers(0, 5), st.none() | st.integers(1, 20))
def test_an_update_of_the_budgets_size_can_be_paid(remaining, validation, children, screen):
    view = replace(VIEW, remaining_rollouts=remaining, validation_size=validation, children=children, screen=screen)
    limit, _ = _clamps.apply(10_000, [_clamps.budget(view)])
    most = max(1, children)

    def cost(size):
        return size + children * (size if screen is None else min(size, screen))

    assert limit >= 1
    assert limit == 1 or cost(limit) + validation <= remaining
    if remaining >= cost(3) + most * validation:
        assert cost(limit) + most * validation <= remaining, "every child may pass"
        assert cost(limit + 1) + most * validation > remaining, "no smaller than it must be"


def test_what_cannot_pay_for_every_validation_is_spent_on_one_large_batch():
    """Not on a tail of single examples: 3 rollouts an example, 2 validations of 100 at most."""
    sizes, remaining = [], 290
    while remaining >= 103:
        view = replace(VIEW, remaining_rollouts=remaining, validation_size=100, children=2)
        sizes.append(_clamps.budget(view).limit)
        remaining -= 3 * sizes[-1]
    assert sizes == [30, 33]


def test_without_a_budget_in_rollouts_nothing_is_clipped():
    assert _clamps.budget(VIEW) is None
