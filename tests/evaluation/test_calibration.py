from __future__ import annotations

import math

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import LMRateLimitError
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.evaluation import Calibration, Calibrator, calibrate
from combee_dspy.exceptions import ArgumentError, ArgumentValueError, CalibrationFailedError

scores = st.floats(0, 1).map(lambda score: round(score, 2))
some_pairs = st.lists(st.tuples(scores, scores), min_size=4, max_size=40)


def code(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return 1.0


@given(some_pairs, st.randoms())
def test_order_does_not_count_and_the_interval_holds_the_figure(pairs, stream) -> None:
    result = calibrate(pairs)
    mixed = list(pairs)
    stream.shuffle(mixed)
    assert calibrate(mixed) == result
    if result.correlation is None:
        assert not result.passed
        assert "one score" in result.reason
    else:
        assert -1 <= result.low <= result.correlation <= result.high <= 1
        assert result.passed == (result.low >= 0.7)


@given(some_pairs)
def test_ranks_count_and_not_scales(pairs) -> None:
    stretched = [(first * 90 + 3, second**3) for first, second in pairs]
    assert calibrate(stretched).correlation == pytest.approx(calibrate(pairs).correlation)


def test_a_figure_worked_by_hand() -> None:
    """One exchange of neighbours in five: 1 − 6·2/(5·24) = 0.9; the interval by Bonett and
    Wright.
    """
    result = calibrate([(1, 1), (2, 3), (3, 2), (4, 4), (5, 5)])
    assert result.correlation == pytest.approx(0.9)
    half = 1.959964 * math.sqrt((1 + 0.81 / 2) / 2)
    assert result.low == pytest.approx(math.tanh(math.atanh(0.9) - half), abs=1e-6)
    assert result.high == pytest.approx(math.tanh(math.atanh(0.9) + half), abs=1e-6)


def test_a_perfect_order_is_not_certain() -> None:
    result = calibrate([(n, n) for n in range(6)])
    assert (result.correlation, result.high) == (1.0, 1.0)
    assert result.low < 0.9


def test_the_interval_covers_about_as_often_as_it_says() -> None:
    generator, hits, strength = np.random.default_rng(11), 0, 0.8
    # Spearman's correlation of a bivariate normal: 6/π · asin(ρ/2).
    truth = 6 / math.pi * math.asin(strength / 2)
    for _ in range(300):
        x = generator.normal(size=40)
        y = strength * x + math.sqrt(1 - strength**2) * generator.normal(size=40)
        result = calibrate(list(zip(x, y, strict=True)))
        hits += result.low <= truth <= result.high
    assert 273 <= hits <= 297


@pytest.mark.parametrize(
    ("pairs", "who"),
    [
        ([(0.5, n) for n in range(9)], "the judge"),
        ([(n, 0.5) for n in range(9)], "the reference"),
        ([(1, 1)] * 9, "the judge and the reference"),
    ],
)
def test_a_judge_with_one_score_for_all_fails_with_that_reason(pairs, who) -> None:
    result = calibrate(pairs)
    assert result.reason.startswith(f"{who} gave all 9")
    with pytest.raises(CalibrationFailedError, match="one score") as caught:
        result.require()
    assert caught.value.result is result


@pytest.mark.parametrize("pairs", [[], [(1, 1)] * 3, [(1, 1), (2, 2), (3, 3), (float("nan"), 1)]])
def test_what_cannot_be_ranked_is_refused(pairs) -> None:
    with pytest.raises(ArgumentValueError, match="pairs"):
        calibrate(pairs)


def test_the_sample_follows_from_seed_and_place_and_a_short_run_has_a_larger_one() -> None:
    def chosen(seed, planned=None):
        calibrator = Calibrator(Calibration(code), seed=seed, planned=planned)
        return {n for n in range(2_000) if calibrator.chosen("candidate", n)}

    assert chosen(1) == chosen(1) != chosen(2)
    assert 60 <= len(chosen(1)) <= 140
    assert Calibrator(Calibration(code), planned=200).share == 0.2
    assert Calibrator(Calibration(code), planned=10).share == 1.0


def fed(pairs, **settings) -> Calibrator:
    calibrator = Calibrator(Calibration(code, minimum=4, **settings))
    for pair in pairs:
        calibrator.add(*pair)
    return calibrator


def test_it_decides_at_the_minimum_at_each_doubling_and_at_the_end() -> None:
    calibrator, decided = fed([]), []
    for n in range(20):
        calibrator.add(n, n)
        if calibrator.decide() is not None:
            decided.append(n + 1)
    assert decided == [4, 8, 16]
    assert calibrator.decide() is None
    last = calibrator.decide(final=True)
    assert last is not None
    assert (last.n, last.correlation) == (20, 1.0)


def test_disagreement_ends_the_run() -> None:
    with pytest.raises(CalibrationFailedError, match="over 8 rollouts"):
        fed([(n, -n) for n in range(8)]).decide()
    assert fed([(n, -n) for n in range(8)], threshold=-0.99).calibration.threshold == -0.99


def test_a_run_that_has_not_told_yet_goes_on_and_has_not_passed_at_the_end() -> None:
    """12 pairs, r = 0.82: above 0.7, and so might be a judge of 0.5."""
    pairs = [(n, n + (4 if n % 3 == 0 else 0)) for n in range(12)]
    calibrator = fed(pairs)
    result = calibrator.decide()
    assert result is not None
    assert result.low < 0.7 < result.correlation
    assert not result.passed
    calibrator.add(13, 20)
    last = calibrator.decide(final=True)
    assert last is not None
    assert (last.n, last.passed) == (13, False)
    assert calibrator.decide(final=True) == last


def test_a_judge_of_six_tenths_hardly_ever_passes() -> None:
    """By the correlation itself 31 % passed at 20 pairs."""
    generator, strength = np.random.default_rng(4), 2 * math.sin(math.pi * 0.6 / 6)
    passed = 0
    for _ in range(200):
        judge = generator.normal(size=20)
        reference = strength * judge + math.sqrt(1 - strength**2) * generator.normal(size=20)
        passed += calibrate(list(zip(judge, reference, strict=True))).passed
    assert passed <= 5


def test_too_few_pairs_are_no_calibration() -> None:
    assert fed([(1, 1), (2, 2)]).decide() is None
    last = fed([(1, 1), (2, 2)]).decide(final=True)
    assert last is not None
    assert not last.passed
    assert "ended with 2 rollouts" in last.reason


def test_a_reference_without_an_opinion_waits_for_the_end() -> None:
    calibrator = fed([(n, 1.0) for n in range(9)])
    assert calibrator.decide() is None
    last = calibrator.decide(final=True)
    assert last is not None
    assert not last.passed
    assert "the reference gave all 9" in last.reason


def test_what_the_reference_raises_ends_the_run_and_an_outage_is_tried_again() -> None:
    def failing(error):
        def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
            raise error

        return Calibrator(Calibration(metric))

    with pytest.raises(CalibrationFailedError, match="its reference raised KeyError"):
        failing(KeyError("x")).judge({}, {})
    with pytest.raises(LMRateLimitError):
        failing(LMRateLimitError("busy")).judge({}, {})
    nan = Calibrator(Calibration(lambda *given: dspy.Prediction(score=float("nan"))))
    with pytest.raises(CalibrationFailedError, match="the score nan"):
        nan.judge({}, {})
    assert Calibrator(Calibration(lambda *given: dspy.Prediction(score=0.5))).judge({}, {}) == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"reference": 3},
        {"share": 0},
        {"share": 1.5},
        {"minimum": 3},
        {"threshold": 2},
        {"confidence": 1},
    ],
)
def test_wrong_settings_are_refused_by_name(wrong) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Calibration(**{"reference": code, **wrong})
