"""How a check says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["ConformanceError", "attempt", "expect"]

T = TypeVar("T")


class ConformanceError(AssertionError):
    """A strategy does not keep its kind's contract.

    Args:
        expected: What the contract says.
        happened: What the strategy did.
        mend: How to put it right.
    """

    def __init__(self, expected: str, happened: str, mend: str) -> None:
        self.expected = expected
        self.happened = happened
        self.mend = mend
        super().__init__(f"\nexpected: {expected}\nhappened: {happened}\nto mend:  {mend}")


def expect(holds: object, expected: str, happened: str, mend: str) -> None:
    """Raise unless a condition holds.

    Raises:
        ConformanceError: It does not.
    """
    if not holds:
        raise ConformanceError(expected, happened, mend)


def attempt(action: Callable[[], T], expected: str, mend: str) -> T:
    """Return what an action returns.

    Raises:
        ConformanceError: It raises anything.
    """
    try:
        return action()
    except Exception as error:
        raise ConformanceError(expected, f"it raised {type(error).__name__}: {error}", mend) from error
