from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.evaluation import detectable_difference, discordance_bound
from combee_dspy.exceptions import ArgumentValueError


def test_the_textbook_figure() -> None:
    """(1.95996 + 0.84162) · sqrt(0.3 / 400)."""
    assert detectable_difference(400, discordance=0.3) == pytest.approx(0.076725, abs=1e-6)
    assert detectable_difference(100) == detectable_difference(100, discordance=1.0)


def test_a_mean_cannot_move_further_than_rows_change() -> None:
    """With 100 rows a difference of 0.05 is 5 changed rows, all one way: p = 2/2**5, not below
    0.05.
    """
    assert detectable_difference(100, discordance=0.0) == pytest.approx(0.0785, abs=1e-4)
    assert detectable_difference(100, discordance=0.05) == detectable_difference(
        100, discordance=0.0
    )
    assert detectable_difference(100, discordance=0.1) > detectable_difference(
        100, discordance=0.05
    )
    assert detectable_difference(4, discordance=0.0) == detectable_difference(4) > 1


def test_such_a_difference_is_found_four_times_in_five() -> None:
    """Drawn differences whose mean is the margin, tested as the formula assumes."""
    generator, size, discordance = np.random.default_rng(5), 300, 0.25
    margin = detectable_difference(size, discordance=discordance)
    up, down = (discordance + margin) / 2, (discordance - margin) / 2
    drawn = generator.choice([1.0, -1.0, 0.0], p=[up, down, 1 - up - down], size=(4000, size))
    z = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / np.sqrt(size))
    assert 0.78 <= (z > 1.959964).mean() <= 0.86


@given(st.integers(1, 5000), st.floats(0, 1), st.floats(0.5, 0.99), st.floats(0.5, 0.999))
def test_more_rows_and_less_discordance_tell_more(size, share, power, confidence) -> None:
    margin = detectable_difference(size, discordance=share, power=power, confidence=confidence)
    assert (
        0
        <= detectable_difference(size + 1, discordance=share, power=power, confidence=confidence)
        <= margin
    )
    assert margin <= detectable_difference(size, power=power, confidence=confidence)


@given(st.integers(1, 500), st.floats(0, 1))
def test_the_bound_is_above_what_was_measured(size, share) -> None:
    bound = discordance_bound(share, size)
    assert share - 1e-9 <= bound <= 1
    assert bound > 0


def test_nothing_changed_once_does_not_mean_nothing_changes() -> None:
    """The rule of three: 1 − 0.05^(1/n)."""
    assert discordance_bound(0.0, 100) == pytest.approx(1 - 0.05 ** (1 / 100), rel=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"discordance": 1.1}, {"power": 1.0}, {"confidence": 0.0}]
)
def test_what_is_out_of_range_is_refused_by_name(wrong) -> None:
    with pytest.raises(ArgumentValueError, match=next(iter(wrong))):
        detectable_difference(**{"n": 9, **wrong})
