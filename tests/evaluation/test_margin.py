from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.evaluation import HeldoutTerms, check_target, detectable_margin, discordance_bound
from combee_dspy.evaluation._margin import effective_size
from combee_dspy.exceptions import ArgumentValueError


def test_the_textbook_figure() -> None:
    """(1.95996 + 0.84162) · sqrt(0.3 / 400)."""
    assert detectable_margin(400, discordance=0.3) == pytest.approx(0.076725, abs=1e-6)
    assert detectable_margin(400, variance=0.3) == detectable_margin(400, discordance=0.3)
    assert detectable_margin(100) == detectable_margin(100, discordance=1.0)


def test_a_mean_cannot_move_further_than_rows_change() -> None:
    """With 100 rows a difference of 0.05 is 5 changed rows, all one way: p = 2/2**5, not below 0.05."""
    assert detectable_margin(100, discordance=0.0) == pytest.approx(0.0785, abs=1e-4)
    assert detectable_margin(100, discordance=0.05) == detectable_margin(100, discordance=0.0)
    assert detectable_margin(100, discordance=0.1) > detectable_margin(100, discordance=0.05)
    assert detectable_margin(4, discordance=0.0) == detectable_margin(4) > 1
    assert detectable_margin(100, variance=0.0) == 0


def test_a_difference_of_the_margin_is_found_four_times_in_five() -> None:
    """Drawn differences whose mean is the margin, tested as the formula assumes."""
    generator, size, discordance = np.random.default_rng(5), 300, 0.25
    margin = detectable_margin(size, discordance=discordance)
    up, down = (discordance + margin) / 2, (discordance - margin) / 2
    drawn = generator.choice([1.0, -1.0, 0.0], p=[up, down, 1 - up - down], size=(4000, size))
    z = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / np.sqrt(size))
    assert 0.78 <= (z > 1.959964).mean() <= 0.86


@given(st.integers(1, 5000), st.floats(0, 1), st.floats(0.5, 0.99), st.floats(0.5, 0.999))
def test_more_rows_and_less_discordance_tell_more(size: int, share: float, power: float, confidence: float) -> None:
    margin = detectable_margin(size, discordance=share, power=power, confidence=confidence)
    assert 0 <= detectable_margin(size + 1, discordance=share, power=power, confidence=confidence) <= margin
    assert margin <= detectable_margin(size, power=power, confidence=confidence)


@given(st.integers(1, 500), st.floats(0, 1))
def test_the_bound_is_above_what_was_measured(size: int, share: float) -> None:
    bound = discordance_bound(share, size)
    assert share - 1e-9 <= bound <= 1
    assert bound > 0


def test_nothing_changed_once_does_not_mean_nothing_changes() -> None:
    """The rule of three: 1 − 0.05^(1/n)."""
    assert discordance_bound(0.0, 100) == pytest.approx(1 - 0.05 ** (1 / 100), rel=1e-6)


def test_copies_of_a_row_are_one_row() -> None:
    assert effective_size("abc") == 3
    assert effective_size("aaa") == 1
    assert effective_size("aab") == pytest.approx(9 / 5)


def test_a_finer_target_is_refused_with_both_figures_and_the_rows_it_takes() -> None:
    with pytest.raises(ArgumentValueError, match=r"finer than the 0\.1.*1,600") as caught:
        check_target(0.05, 0.1, size=400, basis="worst case")
    assert caught.value.argument == "target"
    assert "worst case" in str(caught.value)
    check_target(0.1, 0.1)
    check_target(None, 0.1)


@pytest.mark.parametrize(
    "arguments",
    [{"size": 0}, {"size": 9, "discordance": 1.1}, {"size": 9, "variance": -1}, {"size": 9, "power": 1.0}],
)
def test_what_is_out_of_range_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ArgumentValueError):
        detectable_margin(**arguments)


@pytest.mark.parametrize(
    "terms", [{"target": 0}, {"span": 0}, {"discordance": 2}, {"power": 0}, {"confidence": 1}, {"target": float("nan")}]
)
def test_wrong_terms_are_refused_by_name(terms: dict[str, float]) -> None:
    with pytest.raises(ArgumentValueError, match=next(iter(terms))):
        HeldoutTerms(**terms)
