"""The mistakes that the simulated model makes with numbers, and lessons as fine as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from combee_dspy.streams import derive

__all__ = ["AGAINST", "mistake_of", "wrong_number"]

# In the order in which one is drawn.
_SPOIL: Mapping[str, Callable[[float], float]] = {
    "scale": lambda value: value * 100,
    "sign": lambda value: -value,
    "rounding": lambda value: value + 1,
}
AGAINST: Mapping[str, str] = {
    "scale": "divide the figures as given and answer with the plain ratio, not a percentage",
    "sign": "subtract in the formula's order and keep the sign of the result",
    "rounding": "carry every digit and round once, in the end",
}
"""What a lesson against each mistake says, without what it is about."""


def wrong_number(target: str, seed: int, *place: str | int) -> str | None:
    """Return a number spoiled by one of three mistakes: ×100, its sign, or one added.

    None if ``target`` is no number.

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
    """Return which mistake turns the right number into the wrong one.

    None where none of them does.
    """
    value = _number(target)
    if value is None:
        return None
    return next((name for name, item in _spoiled(value) if f"{item:.12g}" == wrong), None)


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _spoiled(value: float) -> list[tuple[str, float]]:
    # A huge number swallows the addition, as written at least, and its hundredfold may be infinite;
    # its sign remains.
    spoiled = [(name, spoil(value)) for name, spoil in _SPOIL.items()]
    return [
        (name, number)
        for name, number in spoiled
        if float(f"{number:.12g}") != value and math.isfinite(number)
    ]
