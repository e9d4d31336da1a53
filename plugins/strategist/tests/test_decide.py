"""The bounds hold at all times at once, order does not matter, and they close in."""

from __future__ import annotations

import numpy as np
import pytest

from combee_strategist.canary import interval


def test_nothing_is_known_without_a_pair():
    low, high = interval([])
    assert (low, high) == pytest.approx((-1.0, 1.0), abs=1e-6)


def test_bounds_close_in_on_the_mean_and_mirror():
    stream = np.random.default_rng(0)
    pairs = stream.choice([-1.0, 0.0, 1.0], size=8_000, p=[0.05, 0.85, 0.1])
    before = 2.0
    for count in (50, 500, 8_000):
        low, high = interval(pairs[:count])
        assert low < pairs[:count].mean() < high
        assert high - low < before
        before = high - low
    assert before < 0.05
    assert interval(-pairs) == pytest.approx((-high, -low))
    assert interval(pairs[::-1]) == pytest.approx((low, high))


@pytest.mark.slow
def test_looking_after_every_pair_promotes_no_more_often_than_stated():
    # At the margin itself. A t-test at each look would promote about a third of these.
    wrong = 0
    for study in range(200):
        stream = np.random.default_rng(study)
        pairs = stream.choice([-1.0, 0.0, 1.0], size=400, p=[0.06, 0.9, 0.04])
        wrong += any(interval(pairs[:count])[0] > -0.02 for count in range(20, 401, 20))
    assert wrong / 200 <= 0.05


def test_capital_cannot_be_lost_to_the_largest_differences():
    assert interval([1.0] * 500)[0] > 0.97
    assert interval([-1.0] * 500)[1] < -0.97


def test_pairs_that_a_canary_has_are_enough_for_its_margin():
    # 10 % of 20,000 pairs differ, and 5 % of 200, none for the worse: bounds of ±0.007 and −0.005.
    assert interval([-1.0] * 1000 + [0.0] * 18_000 + [1.0] * 1000)[0] > -0.0067
    assert interval([0.0] * 190 + [1.0] * 10)[0] > -0.005
