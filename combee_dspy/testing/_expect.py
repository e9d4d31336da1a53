"""How a check says what is wrong."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["ConformanceError", "attempt", "expect"]


class ConformanceError(AssertionError):
    """A strategy does not keep its kind's contract.

    Args:
        expected: What the contract says.
        happened: What the strategy did.
        mend: How to put it right.
    """

    def __init__(self, expected: str, happened: str, mend: str = "") -> None:
        self.expected = expected
        self.happened = happened
        self.mend = mend
        super().__init__(f"\nexpected: {expected}\nhappened: {happened}\nto mend:  {mend or 'see the contract'}")


def expect(holds: object, expected: str, happened: str, mend: str = "") -> None:
    """Raise unless a condition holds.

    Raises:
        ConformanceError: It does not.
    """
    if not holds:
        raise ConformanceError(expected, happened, mend)


def attempt(action: Callable[[], Any], expected: str, mend: str = "") -> Any:
    """Return what an action returns; a coroutine is run.

    Raises:
        ConformanceError: It raises anything.
    """
    try:
        result = action()
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        return result
    except Exception as error:
        raise ConformanceError(expected, f"it raised {type(error).__name__}: {error}", mend) from error
