"""The bounds on the size of a minibatch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.controllers import BatchView, _base

VIEW = BatchView(update=0, trainset_size=240, workers=8)


@given(st.integers(1, 1000), st.lists(st.integers(1, 1000) | st.none(), max_size=6))
def test_the_size_ends_at_the_smallest_limit_and_each_change_is_recorded(size, limits):
    bounds = [
        None if limit is None else _base.Bound(f"b{number}", limit, "why")
        for number, limit in enumerate(limits)
    ]
    after, clamps = _base.clamp(size, bounds)
    assert after == min([size, *(limit for limit in limits if limit is not None)])
    path = [size, *(clamp.after for clamp in clamps)]
    assert [clamp.before for clamp in clamps] == path[:-1]
    assert path == sorted(set(path), reverse=True)


@pytest.mark.parametrize(
    ("workers", "capacity", "limit"), [(8, None, 32), (8, 3, 12), (8, 100, 32), (1, 0, 4)]
)
def test_capacity_is_what_really_runs_at_once(workers, capacity, limit):
    assert _base.capacity_bound(replace(VIEW, workers=workers, capacity=capacity), 4).limit == limit


@pytest.mark.parametrize(("variance", "limit"), [(0.25, 100), (0.02, 8), (0.0001, 3)])
def test_variance_asks_for_a_standard_error_of_a_twentieth(variance, limit):
    assert _base.variance_bound(replace(VIEW, score_variance=variance), 3).limit == limit
    assert limit == 3 or math.sqrt(variance / limit) <= 0.05


@pytest.mark.parametrize("variance", [None, 0.0, math.nan, math.inf])
def test_a_variance_that_says_nothing_limits_nothing(variance):
    assert _base.variance_bound(replace(VIEW, score_variance=variance), 3) is None


@given(st.integers(0, 2000), st.integers(0, 300), st.integers(0, 5), st.none() | st.integers(1, 20))
def test_an_update_of_the_budgets_size_can_be_paid(remaining, validation, children, screen):
    view = replace(
        VIEW,
        remaining_rollouts=remaining,
        validation_size=validation,
        children=children,
        screen=screen,
    )
    limit, _ = _base.clamp(10_000, [_base.budget_bound(view)])

    def cost(size, count):
        check = size if screen is None else min(size, screen)
        return size + count * validation + (count * check if children else 0)

    affordable = [count for count in range(1, max(1, children) + 1) if cost(3, count) <= remaining]
    count = max(affordable, default=1)
    assert limit >= 1
    assert limit == 1 or cost(limit, count) <= remaining, (
        "every child that three examples leave room for may pass"
    )
    assert cost(limit + 1, count) > remaining, "no smaller than it must be"


@pytest.mark.parametrize(("remaining", "limit"), [(32, 4), (58, 3), (56, 24)])
def test_what_cannot_pay_for_every_child_is_spent_on_fewer_of_them(remaining, limit):
    # 32 pay for 4 rollouts of the parent, 4 of one child's check, and 24 of its validation.
    view = replace(VIEW, validation_size=24, children=2, screen=8)
    assert _base.budget_bound(view) is None, "without a budget in rollouts nothing is cut"
    assert _base.budget_bound(replace(view, remaining_rollouts=remaining)).limit == limit


@pytest.mark.parametrize(
    ("update", "remaining", "limit"), [(0, 105, 27), (1, 70, 27), (2, 38, None), (0, 20, 3)]
)
def test_components_that_no_update_has_taught_share_the_budget(update, remaining, limit):
    view = replace(VIEW, update=update, turns=3, validation_size=8, remaining_rollouts=remaining)
    bound = _base.turns_bound(view)
    assert (bound and bound.limit) == limit
    assert _base.turns_bound(replace(view, turns=1)) is None
    assert _base.turns_bound(replace(view, remaining_rollouts=None)) is None
