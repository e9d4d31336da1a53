from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.evaluation import Calibration, calibrate
from combee_dspy.exceptions import ArgumentError, ArgumentValueError, CalibrationFailedError

scores = st.floats(0, 1).map(lambda score: round(score, 2))
some_pairs = st.lists(st.tuples(scores, scores), min_size=4, max_size=40)


@given(some_pairs, st.randoms())
def test_order_does_not_count_and_the_interval_holds_the_figure(pairs, stream) -> None:
    found = calibrate(pairs)
    mixed = list(pairs)
    stream.shuffle(mixed)
    assert repr(calibrate(mixed)) == repr(found)
    if math.isnan(found.correlation):
        assert not found.passed
        assert "one score" in found.reason
    else:
        assert -1 <= found.low <= found.correlation <= found.high <= 1
        assert found.passed == (found.correlation >= 0.7)


@given(some_pairs)
def test_ranks_count_and_not_scales(pairs) -> None:
    stretched = [(first * 90 + 3, second**3) for first, second in pairs]
    assert calibrate(stretched).correlation == pytest.approx(calibrate(pairs).correlation, nan_ok=True)


def test_a_figure_worked_by_hand() -> None:
    """One exchange of neighbours in five: 1 − 6·2/(5·24) = 0.9; the interval by Bonett and Wright."""
    found = calibrate([(1, 1), (2, 3), (3, 2), (4, 4), (5, 5)])
    assert found.correlation == pytest.approx(0.9)
    half = 1.959964 * math.sqrt((1 + 0.81 / 2) / 2)
    assert found.low == pytest.approx(math.tanh(math.atanh(0.9) - half), abs=1e-6)
    assert found.high == pytest.approx(math.tanh(math.atanh(0.9) + half), abs=1e-6)


def test_a_perfect_order_is_not_certain() -> None:
    found = calibrate([(n, n) for n in range(6)])
    assert (found.correlation, found.high) == (1.0, 1.0)
    near = 1 - 12 / 210
    half = 1.959964 * math.sqrt((1 + near**2 / 2) / 3)
    assert found.low == pytest.approx(math.tanh(math.atanh(near) - half), abs=1e-6)


def test_the_interval_covers_about_as_often_as_it_says() -> None:
    generator, hits, strength = np.random.default_rng(11), 0, 0.8
    # Spearman's correlation of a bivariate normal: 6/π · asin(ρ/2).
    truth = 6 / math.pi * math.asin(strength / 2)
    for _ in range(300):
        x = generator.normal(size=40)
        y = strength * x + math.sqrt(1 - strength**2) * generator.normal(size=40)
        found = calibrate(list(zip(x, y, strict=True)))
        hits += found.low <= truth <= found.high
    assert 273 <= hits <= 297


@pytest.mark.parametrize(
    ("pairs", "who"),
    [
        ([(0.5, n) for n in range(9)], "the judge"),
        ([(n, 0.5) for n in range(9)], "the reference"),
        ([(1, 1)] * 9, "the judge and the reference"),
    ],
)
def test_a_judge_with_one_score_for_all_fails_with_that_reason(pairs, who: str) -> None:
    found = calibrate(pairs)
    assert math.isnan(found.correlation)
    assert not found.passed
    assert found.reason.startswith(f"{who} gave all 9")
    with pytest.raises(CalibrationFailedError, match="one score") as caught:
        found.require()
    assert caught.value.result is found


@pytest.mark.parametrize("pairs", [[], [(1, 1)] * 3, [(1, 1), (2, 2), (3, 3), (float("nan"), 1)]])
def test_what_cannot_be_ranked_is_refused(pairs) -> None:
    with pytest.raises(ArgumentValueError, match="pairs"):
        calibrate(pairs)


def test_the_event_carries_the_scatter() -> None:
    found = calibrate([(n, n % 3) for n in range(9)], subject="proxy", threshold=0.9)
    event = found.event(4)
    assert (event.iteration, event.subject, event.size, event.threshold, event.passed) == (4, "proxy", 9, 0.9, False)
    assert sorted(event.pairs) == sorted((float(n), float(n % 3)) for n in range(9))


def test_a_short_run_judges_a_larger_share() -> None:
    settings = Calibration(reference=min, share=0.05, minimum=20)
    assert settings.share_for(None) == settings.share_for(10_000) == 0.05
    assert settings.share_for(200) == 0.2
    assert settings.share_for(10) == 1.0


@pytest.mark.parametrize(
    "wrong", [{"reference": 3}, {"share": 0}, {"share": 1.5}, {"minimum": 3}, {"threshold": 2}, {"confidence": 1}]
)
def test_wrong_settings_are_refused_by_name(wrong) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Calibration(**{"reference": min, **wrong})
