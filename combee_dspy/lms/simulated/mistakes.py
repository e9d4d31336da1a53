"""The mistakes that the simulated model makes with numbers, and lessons as fine as they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from combee_dspy.streams import derive

__all__ = ["mistake_of", "said_of", "wrong_number"]


@dataclass(frozen=True, slots=True)
class _Mistake:
    spoil: Callable[[float], float]
    said: str


# In the order in which one is drawn.
_MISTAKES: Mapping[str, _Mistake] = {
    "scale": _Mistake(
        lambda value: value * 100,
        "divide the figures as given and answer with the plain ratio, not a percentage",
    ),
    "sign": _Mistake(lambda value: -value, "subtract in the formula's order and keep the sign of the result"),
    "rounding": _Mistake(lambda value: value + 1, "carry every digit and round once, in the end"),
}


def wrong_number(target: str, seed: int, *place: str | int) -> str | None:
    """Return a number spoiled by one of three mistakes: ×100, its sign, or one added; None if ``target`` is no number.

    Args:
        target: The right number.
        seed: The seed of the draw.
        *place: What identifies the draw.
    """
    value = _number(target)
    if value is None:
        return None
    chosen = derive(seed, "wrong", *place).choice([item for _, item in _spoiled(value)])
    return f"{chosen:.12g}"


def mistake_of(target: str, wrong: str) -> str | None:
    """Return which mistake turns the right number into the wrong one; None where none of them does."""
    value = _number(target)
    if value is None:
        return None
    return next((name for name, item in _spoiled(value) if f"{item:.12g}" == wrong), None)


def said_of(mistake: str) -> str:
    """Return what a lesson against a mistake says, without what it is about."""
    return _MISTAKES[mistake].said


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _spoiled(value: float) -> list[tuple[str, float]]:
    # A huge number swallows the addition, as written at least, and its hundredfold may be infinite; its sign remains.
    made = [(name, mistake.spoil(value)) for name, mistake in _MISTAKES.items()]
    return [(name, item) for name, item in made if float(f"{item:.12g}") != value and math.isfinite(item)]
