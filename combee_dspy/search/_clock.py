"""Ends what a budget in seconds leaves no time for, whatever it hangs in."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import dspy

from combee_dspy.exceptions import HeldUpError
from combee_dspy.search._budget import BudgetReached, Purse
from combee_dspy.search._effects import Effects

__all__ = ["Clock", "Overtime"]

T = TypeVar("T")

# Seconds once the time is over: until what is in flight is given up, until what waits for it is
# cancelled, and until the loop itself must have ended.
_GRACE, _SETTLED, _HELD_UP = 0.8, 1.0, 1.6
_SILENT = _HELD_UP  # seconds without an answer after which a loop is held up
_LOOK = 0.5  # seconds after which to look again how much is left: a reserve may be set meanwhile


class Clock:
    """Holds a search, and then its reading of the held-out set, to the seconds of the budget.

    Once they are over nothing begins any more. What is in flight has most of a second to end and is
    then given up. Lives on the search's loop.
    """

    def __init__(self, effects: Effects, purse: Purse) -> None:
        self._effects, self._purse = effects, purse

    async def hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and wait for every effect that it has begun.

        Raises:
            BudgetReached: Its time was over before it had a result.
        """
        left = self._purse.left
        if left is None or left <= self._purse.reserve:
            # Where the time was over before, what was bought is read again, however long that
            # takes.
            self._effects.buyer.over = "" if left is None else self._purse.time_is_over()
            result = await work()
            await self._effects.drain()
            return result
        self._effects.buyer.over = ""
        limit = asyncio.timeout(None)
        watcher = asyncio.ensure_future(self._watch(limit))
        try:
            async with limit:
                result = await work()
                await self._effects.drain()
                return result
        except BudgetReached:
            await self._effects.drain(self._since_over(_GRACE))
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            raise BudgetReached(self._effects.buyer.over) from None
        finally:
            watcher.cancel()

    async def _watch(self, limit: asyncio.Timeout) -> None:
        while (left := self._since_over(0.0)) > 0:
            await asyncio.sleep(min(left, _LOOK))
        self._effects.buyer.over = self._purse.time_is_over()
        await self._effects.drain(max(0.0, self._since_over(_GRACE)))
        await asyncio.sleep(max(0.0, self._since_over(_SETTLED)))
        limit.reschedule(asyncio.get_running_loop().time())

    def _since_over(self, seconds: float) -> float:
        """Return how long it takes until the time has been over for so many seconds."""
        left = self._purse.left
        return 0.0 if left is None else left - self._purse.reserve + seconds


class Overtime:
    """Tells the thread that waits for runs when code of the user's holds up the loop they run
    on.
    """

    def __init__(self) -> None:
        self._runs: dict[int, tuple[float, float, Callable[[], dspy.Module | None]]] = {}
        self._answered = time.monotonic()
        self._asked = False

    def begin(self, number: int, purse: Purse, best: Callable[[], dspy.Module | None]) -> None:
        """Note when a run must have ended, if it must, and what returns its best program so far."""
        if purse.left is not None and purse.limits.seconds is not None:
            until = time.monotonic() + purse.left + _HELD_UP
            self._runs[number] = (until, purse.limits.seconds, best)

    def end(self, number: int) -> None:
        """Note that a run has ended."""
        self._runs.pop(number, None)

    def check(self, thread: threading.Thread, loop: asyncio.AbstractEventLoop) -> None:
        """Look whether a thread's loop answers. Called several times a second.

        Raises:
            HeldUpError: It does not, and a run on it should have ended.
        """
        now = time.monotonic()
        if self._runs and not self._asked:
            self._asked = True
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(self._answer)
        if now - self._answered < _SILENT:
            return
        for until, seconds, best in tuple(self._runs.values()):
            if now >= until:
                error = HeldUpError(seconds, _place(thread))
                error.program = best()
                raise error

    def _answer(self) -> None:
        self._answered, self._asked = time.monotonic(), False


def _place(thread: threading.Thread) -> str:
    """Return where a thread is, as a file and a line."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "a thread that has ended"
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno}, in {last.name}"
