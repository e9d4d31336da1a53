"""Scoring of numeric answers, exact and tolerant, with feedback that names what went wrong.

The exact score is ACE's for Formula: prediction and target, commas removed,
must be equal as floats. ``$15.0``, ``15%`` and ``15.003`` are wrong for 15.0.
The tolerant score asks for the right value however it is written: symbols,
words around a single number and rounding are forgiven, a wrong scale or sign
is not. Everything here is pure and safe to call from any thread.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.exceptions import ArgumentValueError

_ABSOLUTE = 0.005
"""Half a unit of the second decimal: targets carry two."""
_RELATIVE = 1e-4
"""Four significant digits, for values where two decimals are finer than that."""
_SHOWN = 80

_NUMBER = re.compile(
    r"\d{1,3}(?:[,'’\u00a0\u202f"
    r" ]\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3}(?!\d))?|\.\d+"
)
_GROUPING = re.compile(r"[,'’\u00a0\u202f ]")
_DECIMAL_COMMA = re.compile(r"([-+]?)(\d{1,3}(?:\.\d{3})*|\d+),(\d{1,2})")
_MINUS_BEFORE = re.compile(r"(?:^|[\s(=:])[-−–]\s?[$€£¥]?\s?$|[$€£¥]\s?[-−–]\s?$")
_SYMBOL = re.compile(r"[$€£¥%]|\b(?:percent|per cent|dollars?|usd|eur|euros?)\b", re.IGNORECASE)
_PERCENT_AFTER = re.compile(r"\s?(?:%|percent\b|per cent\b)", re.IGNORECASE)
_SCALE_AFTER = re.compile(r"\s?(thousand|million|billion|trillion|k|mn|bn|m|b)\b", re.IGNORECASE)
_SCALES = {
    "thousand": 1e3,
    "k": 1e3,
    "million": 1e6,
    "mn": 1e6,
    "m": 1e6,
    "billion": 1e9,
    "bn": 1e9,
    "b": 1e9,
}
_SCALES["trillion"] = 1e12
_NOISE = re.compile(r"[\s()+\-−–.]")

_UNREADABLE = {
    "empty": "got no answer.",
    "several-numbers": "got {got}. It holds several numbers: give the final number alone.",
    "unparsable": "got {got}, in which no number can be read. Give the number alone.",
}
_WRONG = {
    "unit-symbol": "Leave out unit symbols such as $ and %.",
    "scale-word": "Write the number out in full digits instead of words such as million.",
    "extra-text": "Give the number alone, without other text.",
    "separators": "Use a point for decimals and no other separators than commas between thousands.",
    "rounding": "The value is right but rounded differently: give two decimals.",
    "sign": "The sign is flipped.",
    "percent-high": (
        "The value is 100 times too large: a percentage where a plain fraction is wanted."
    ),
    "percent-low": "The value is 100 times too small: a fraction where a percentage is wanted.",
    "magnitude": (
        "The value is {many} times too {direction}: check thousands, millions and billions."
    ),
    "inverted": "The value is upside down: numerator and denominator are swapped.",
    "wrong": (
        "The value itself is wrong: check which quantities the question gives and how they combine."
    ),
}
"""What can be wrong with a number, how it is written first, and what feedback says of it."""

_MAGNITUDES = (1e3, 1e-3, 1e6, 1e-6, 1e9, 1e-9, 10.0, 0.1)
_FACTORS = {100.0: "percent-high", 0.01: "percent-low", **dict.fromkeys(_MAGNITUDES, "magnitude")}
"""Times the right size, to what is wrong, in the order in which they are tried."""

_Reading = tuple[float, tuple[str, ...]]
"""A value that an answer may mean, and what is wrong with how it is written."""


class AnswerNumber(dspy.Signature):
    """Answer the finance question with a number."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField(
        desc=(
            "a plain decimal number rounded to two places, in full digits, without units or other"
            " text"
        )
    )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is right and wrong with one numeric answer.

    ``exact``: right by the benchmark's own score; ``tolerant``: the value is right, however it is
    written; ``problems``: what is wrong, most superficial first; ``feedback``: sentences that say
    it.
    """

    exact: bool
    tolerant: bool
    problems: tuple[str, ...]
    feedback: str


def plain_number(text: str) -> float | None:
    """Return the text as a float with its commas removed, or ``None``."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def diagnose(prediction: object, target: str) -> Diagnosis:
    """Compare a predicted number, as ``str`` writes it, with the right one in plain digits.

    Raises:
        ArgumentValueError: ``target`` is not a finite number.
    """
    expected = plain_number(target)
    if expected is None or not math.isfinite(expected):
        raise ArgumentValueError(
            "target", target, "is not a finite number", "Check the benchmark's row."
        )
    text = "" if prediction is None else str(prediction)
    if plain_number(text) == expected:
        return Diagnosis(True, True, (), f"Correct: {target}.")
    line = " ".join(text.split())
    got = repr(line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…")
    readings = _read(text.strip())
    if isinstance(readings, str):
        feedback = f"Wrong: expected {target}, {_UNREADABLE[readings].format(got=got)}"
        return Diagnosis(False, False, (readings,), feedback)
    value, written = next((item for item in readings if _close(item[0], expected)), readings[0])
    relation, factor = _relate(value, expected)
    words = {
        "many": f"{max(factor, 1 / factor):,.0f}",
        "direction": "large" if factor > 1 else "small",
    }
    sentences = [_WRONG[problem].format(**words) for problem in written + relation]
    feedback = " ".join([f"Wrong: expected {target}, got {got}.", *sentences])
    return Diagnosis(False, _close(value, expected), written + relation, feedback)


def _read(text: str) -> list[_Reading] | str:
    """Return the possible values of an answer, the likeliest first, or why there is none."""
    if not text:
        return "empty"
    value = plain_number(text)
    if value is not None and not math.isfinite(value):
        return "unparsable"
    readings: list[_Reading] = [] if value is None else [(value, ())]
    if comma := _DECIMAL_COMMA.fullmatch(text):
        readings.append(
            (float(f"{comma[1]}{comma[2].replace('.', '')}.{comma[3]}"), ("separators",))
        )
    return readings or _read_loosely(text)


def _read_loosely(text: str) -> list[_Reading] | str:
    # Read two at most: a long answer full of digits costs no more than a short one.
    matches = [match for match, _ in zip(_NUMBER.finditer(text), range(2), strict=False)]
    if len(matches) != 1:
        return "several-numbers" if matches else "unparsable"
    match = matches[0]
    before, after = text[: match.start()], text[match.end() :]
    value = float(_GROUPING.sub("", match[0]))
    if _MINUS_BEFORE.search(before) or (
        before.rstrip(" $€£¥").endswith("(") and after.lstrip(" %").startswith(")")
    ):
        value = -value
    problems: list[str] = []
    rest = before + " " + after
    if _SYMBOL.search(rest):
        problems.append("unit-symbol")
        rest = _SYMBOL.sub("", rest)
    if scale := _SCALE_AFTER.match(after):
        problems.append("scale-word")
        value *= _SCALES[scale[1].lower()]
        rest = rest.replace(scale[1], "", 1)
    if _NOISE.sub("", rest):
        problems.append("extra-text")
    if not math.isfinite(value):
        return "unparsable"
    mistakes = tuple(problems) or ("separators" if _GROUPING.search(match[0]) else "extra-text",)
    return (
        [(value, mistakes), (value / 100, mistakes)]
        if _PERCENT_AFTER.match(after)
        else [(value, mistakes)]
    )


def _close(value: float, expected: float) -> bool:
    # 1e-9 lets half a unit itself pass, which binary floats overshoot.
    return abs(value - expected) <= max(_ABSOLUTE + 1e-9, _RELATIVE * abs(expected))


def _relate(value: float, expected: float) -> tuple[tuple[str, ...], float]:
    """Return how a value differs from the right one, and by which factor."""
    if _close(value, expected):
        return (() if value == expected else ("rounding",)), 1.0
    if expected == 0 or value == 0:
        return ("wrong",), 1.0
    if _close(-value, expected):
        return ("sign",), 1.0
    sign = ("sign",) if (value < 0) != (expected < 0) else ()
    size, right = abs(value), abs(expected)
    for factor, name in _FACTORS.items():
        # Both may have been rounded to two decimals.
        slack = min(_ABSOLUTE * max(1.0, 1.0 / factor), 0.05 * right)
        if abs(size / factor - right) <= max(_RELATIVE * right, slack):
            return (*sign, name), factor
    return ((*sign, "inverted") if abs(size * right - 1) <= 0.01 else ("wrong",)), 1.0


def exact_metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Score ``pred.answer`` against ``gold.answer``: 1.0 where equal as ACE compares, else 0.0,
    with feedback.
    """
    diagnosis = diagnose(getattr(pred, "answer", None), str(gold.answer))
    return dspy.Prediction(score=float(diagnosis.exact), feedback=diagnosis.feedback)


def tolerant_metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Score like :func:`exact_metric`, forgiving how the value is written and rounded."""
    diagnosis = diagnose(getattr(pred, "answer", None), str(gold.answer))
    return dspy.Prediction(score=float(diagnosis.tolerant), feedback=diagnosis.feedback)
