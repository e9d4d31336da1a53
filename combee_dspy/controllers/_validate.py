"""What a controller's parameters must be."""

from __future__ import annotations

import math

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["require_count", "require_positive"]


def require_count(argument: str, value: object, minimum: int) -> None:
    """Refuse anything but an integer of at least ``minimum``.

    Raises:
        ArgumentTypeError: It is no integer; ``True`` and ``False`` are none.
        ArgumentValueError: It is below ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(argument, value, "is no integer", f"Give an integer of at least {minimum}.")
    if value < minimum:
        raise ArgumentValueError(argument, value, f"is below {minimum}", f"Give an integer of at least {minimum}.")


def require_positive(argument: str, value: object, unit: str) -> None:
    """Refuse anything but a finite number above 0.

    Raises:
        ArgumentTypeError: It is no number; ``True`` and ``False`` are none.
        ArgumentValueError: It is zero, negative, infinite or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(argument, value, "is no number", f"Give {unit}, above 0.")
    if not math.isfinite(value) or value <= 0:
        raise ArgumentValueError(argument, value, "is not a finite number above 0", f"Give {unit}, above 0.")
