"""Refusals by chance and those of a full service, told apart by what a lower and a higher limit do
to them.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from combee_dspy.rollouts._chance import Chance


def answer(chance: Chance, odds: float, limit: int, answers: int) -> list[str]:
    """Tell of answers, and of refusals evenly between them."""
    findings, due = [], 0.0
    for _ in range(answers):
        due += odds
        while due >= 1:
            due -= 1
            chance.refused()
        if finding := chance.answered(1, limit):
            findings.append(finding)
    return findings


@pytest.mark.slow
@given(st.integers(2, 200), st.integers(1, 300), st.floats(0.01, 3))
def test_a_full_service_is_never_taken_for_chance_for_long(capacity, above, repeats):
    """Repeats: how often one that waits is refused while one is answered, whatever the limit."""
    low = capacity + above
    chance = Chance()
    chance.cut(low)
    guessed = answer(chance, repeats * above / capacity, low, 10 * low)
    assume("by chance" in guessed)
    high = 4 * low
    assert "too many" in answer(chance, repeats * (high - capacity) / capacity, high, 10 * high)


@pytest.mark.parametrize("share", [0.2, 0.3, 0.4])
@pytest.mark.parametrize("limit", [4, 37, 200])
def test_refusals_that_stay_as_many_lower_the_limit_hardly_ever(share, limit):
    """Of ten runs of 2,000 calls."""
    lowered = with_odds = 0
    for seed in range(10):
        stream, chance = random.Random(seed), Chance()
        chance.cut(limit)
        for _ in range(2000):
            while stream.random() < share:
                if chance.refused():
                    lowered += 1
                    chance.cut(limit)
            if chance.answered(1, limit) == "too many":
                lowered += 1
                chance.cut(limit)
            with_odds += chance.odds is not None
    assert lowered <= 10
    assert with_odds > 0.8 * 20_000


@given(st.integers(1, 400))
def test_refusals_that_end_after_a_cut_are_no_chance(limit):
    chance = Chance()
    chance.cut(limit)
    assert answer(chance, 0.0, limit, 20 * limit + 20) == []
    assert chance.odds is None
    assert chance.refused(), "the next one is acted on"


def test_chance_that_has_ended_is_forgotten():
    chance = Chance()
    chance.cut(8)
    assert answer(chance, 0.4, 8, 40) == ["by chance"]
    assert not chance.refused()
    answer(chance, 0.0, 8, 400)
    assert chance.odds is None
    assert chance.refused()
