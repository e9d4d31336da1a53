"""How a check says what is wrong."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any


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


def expect_pure(strategy: Any, ask: Callable[[Any, Any], Any], views: Sequence[Any]) -> None:
    """Raise unless a strategy and a copy of it, asked in reverse order, answer each view alike.

    Raises:
        ConformanceError: They do not: what one remembers, the other would remember differently.
    """
    first = [ask(strategy, view) for view in views]
    other = copy.deepcopy(strategy)
    second = [ask(other, view) for view in reversed(views)][::-1]
    mend = "read the view only: no clock, no `random`, nothing kept on self between calls"
    for view, one, two in zip(views, first, second, strict=True):
        expect(one == two, "the same answer for the same view", f"{one!r:.200} and {two!r:.200} for {view}", mend)
