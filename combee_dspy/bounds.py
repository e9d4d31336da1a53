"""What an argument that is a number must be: said in one place, in one way."""

from __future__ import annotations

import math
from numbers import Real

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["check_number", "check_whole"]


def check_whole(name: str, value: object, least: int, remedy: str = "") -> None:
    """Check that an argument is a whole number, and no truth value, of at least ``least``.

    Args:
        name: The argument.
        value: Its value.
        least: The least allowed.
        remedy: What to give instead; made from ``least`` where empty.

    Raises:
        ArgumentTypeError: It is no whole number.
        ArgumentValueError: It is below ``least``.
    """
    remedy = remedy or f"Give a whole number of at least {least}."
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(name, value, "is no whole number", remedy)
    if value < least:
        raise ArgumentValueError(name, value, f"is below {least}", remedy)


def check_number(name: str, value: object, remedy: str = "Give a finite number.") -> None:
    """Check that an argument is a finite number, and no truth value.

    Args:
        name: The argument.
        value: Its value.
        remedy: What to give instead.

    Raises:
        ArgumentTypeError: It is no number.
        ArgumentValueError: It is infinite or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, value, "is not a number", remedy)
    if not math.isfinite(value):
        raise ArgumentValueError(name, value, "is not finite", remedy)
