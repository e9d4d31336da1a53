from __future__ import annotations

import dspy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from combee_dspy.benchmarks.numeric import diagnose, exact_metric, tolerant_metric
from combee_dspy.exceptions import ArgumentValueError

CENTS = st.integers(min_value=-(10**9), max_value=10**9)
LARGE_CENTS = st.integers(min_value=200, max_value=10**9)


def text_of(cents: int) -> str:
    return f"{cents / 100:.2f}"


def ace_says(prediction: str, target: str) -> bool:
    try:
        return float(prediction.replace(",", "")) == float(target.replace(",", ""))
    except ValueError:
        return False


@given(CENTS)
def test_a_target_is_right_for_itself(cents):
    diagnosis = diagnose(text_of(cents), text_of(cents))
    assert diagnosis.exact
    assert diagnosis.tolerant
    assert diagnosis.problems == ()


@given(st.text() | st.from_regex(r"[-+$]?[0-9][0-9.,]{0,12}[%a-z ]{0,4}", fullmatch=True), CENTS)
def test_any_text_is_scored_as_ace_scores_it(prediction, cents):
    diagnosis = diagnose(prediction, text_of(cents))
    assert diagnosis.exact == ace_says(prediction, text_of(cents))
    assert diagnosis.tolerant or not diagnosis.exact
    assert diagnosis.exact == (diagnosis.problems == ())
    assert diagnosis.feedback
    assert len(diagnosis.feedback) < 600


@given(LARGE_CENTS, st.sampled_from(["${}", "{}%", "{} dollars", "€{}", "{} percent"]))
def test_a_unit_symbol_is_wrong_and_tolerated(cents, form):
    diagnosis = diagnose(form.format(text_of(cents)), text_of(cents))
    assert not diagnosis.exact
    assert diagnosis.tolerant
    assert diagnosis.problems == ("unit-symbol",)


@given(LARGE_CENTS)
def test_a_hundred_times_too_large_or_small_is_named(cents):
    high = diagnose(text_of(cents * 100), text_of(cents))
    low = diagnose(repr(cents / 10000), text_of(cents))
    assert high.problems == ("percent-high",)
    assert low.problems == ("percent-low",)
    assert not high.tolerant
    assert not low.tolerant


@given(CENTS)
def test_a_flipped_sign_is_named(cents):
    assume(abs(cents) > 1)
    diagnosis = diagnose(text_of(-cents), text_of(cents))
    assert diagnosis.problems == ("sign",)
    assert not diagnosis.tolerant


@given(LARGE_CENTS, st.integers(min_value=1, max_value=4))
def test_more_decimals_are_rounding(cents, extra):
    diagnosis = diagnose(f"{cents / 100:.2f}{extra}", text_of(cents))
    assert diagnosis.problems == ("rounding",)
    assert diagnosis.tolerant
    assert not diagnosis.exact


@given(LARGE_CENTS, st.sampled_from([3, -3, 6, -6]))
def test_a_slip_of_thousands_is_named(cents, power):
    diagnosis = diagnose(repr(cents / 100 * 10.0**power), text_of(cents))
    assert diagnosis.problems == ("magnitude",)
    assert f"{10 ** abs(power):,}" in diagnosis.feedback


@pytest.mark.parametrize(
    ("prediction", "target", "problems", "tolerant"),
    [
        ("$15.0", "15.0", ("unit-symbol",), True),
        ("15%", "15.0", ("unit-symbol",), True),
        ("15%", "0.15", ("unit-symbol",), True),
        ("15.003", "15.0", ("rounding",), True),
        ("15", "15.38", ("wrong",), False),
        ("-$15.00", "-15.0", ("unit-symbol",), True),
        ("$-15.00", "-15.0", ("unit-symbol",), True),
        ("($1,500)", "-1500.0", ("unit-symbol",), True),
        ("\u221215", "-15.0", ("extra-text",), True),
        ("The answer is 15.", "15.0", ("extra-text",), True),
        ("1.5 million", "1500000.0", ("scale-word",), True),
        ("$1.5M", "1500000.0", ("unit-symbol", "scale-word"), True),
        ("$5 million", "5000.0", ("unit-symbol", "scale-word", "magnitude"), False),
        ("12 345.67", "12345.67", ("separators",), True),
        ("1.234,50", "1234.5", ("separators",), True),
        ("15,25", "15.25", ("separators",), True),
        ("30/2 = 15", "15.0", ("several-numbers",), False),
        ("fifteen", "15.0", ("unparsable",), False),
        ("nan", "15.0", ("unparsable",), False),
        ("inf", "15.0", ("unparsable",), False),
        ("", "15.0", ("empty",), False),
        ("   ", "15.0", ("empty",), False),
        (None, "15.0", ("empty",), False),
        ("-0.15", "15.0", ("sign", "percent-low"), False),
        ("0.25", "4.0", ("inverted",), False),
        ("7", "0.0", ("wrong",), False),
        ("0", "7.0", ("wrong",), False),
        ("7", "15.0", ("wrong",), False),
        ("$" * 50_000, "15.0", ("unparsable",), False),
        ("-" * 50_000 + "15", "15.0", ("extra-text",), True),
    ],
)
def test_what_went_wrong_is_named(prediction, target, problems, tolerant):
    diagnosis = diagnose(prediction, target)
    assert not diagnosis.exact
    assert set(diagnosis.problems) == set(problems)
    assert diagnosis.tolerant is tolerant


@pytest.mark.parametrize("prediction", ["1,500", "1500", " 1500.00 ", "1.5e3", "+1500", "15,00"])
def test_what_ace_accepts_is_right(prediction):
    assert diagnose(prediction, "1500.0").exact


def test_feedback_shows_both_numbers_and_cuts_long_answers():
    feedback = diagnose("word " * 500, "15.0").feedback
    assert "15.0" in feedback
    assert len(feedback) < 250
    assert "100 times too large" in diagnose("15", "0.15").feedback
    assert "1,000 times too small" in diagnose("15", "15000.0").feedback


@pytest.mark.parametrize("target", ["", "abc", "nan", "inf"])
def test_a_target_that_is_no_number_is_refused(target):
    with pytest.raises(ArgumentValueError, match="target"):
        diagnose("1", target)


def test_the_metrics_follow_gepas_protocol():
    gold = dspy.Example(question="q", answer="15.0").with_inputs("question")
    exact = exact_metric(gold, dspy.Prediction(answer="$15"), None, None, None)
    tolerant = tolerant_metric(gold, dspy.Prediction(answer="$15"))
    assert (exact.score, tolerant.score) == (0.0, 1.0)
    assert "$ and %" in exact.feedback
    assert exact_metric(gold, dspy.Prediction(answer="15")).score == 1.0
    assert exact_metric(gold, dspy.Prediction(other="15")).score == 0.0
