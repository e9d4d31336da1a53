"""Ends a run when its seconds are over, wherever it hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._effects import Effects

__all__ = ["Clock"]

T = TypeVar("T")

# Seconds after the end of the time: then effects in flight are abandoned, and then their waiters.
_GRACE, _SETTLED = 0.8, 1.0
_LOOK = 0.5  # seconds after which to look again how much is left: a reserve may be set meanwhile


@dataclass(eq=False)
class Clock:
    """Holds a search, and then its reading of the held-out set, to the seconds of the budget.

    Once they are over no effect begins. Effects in flight have most of a second to end; then they
    are abandoned. Lives on the search's loop.
    """

    effects: Effects

    def __post_init__(self) -> None:
        self._purse = self.effects.purse

    async def hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and wait for all its effects.

        Raises:
            BudgetReached: Its time was over before it had a result.
        """
        left = self._purse.left
        if left is None or left <= self._purse.reserve:
            # Where the time was over before, results are read from the journal: however long that
            # takes.
            self.effects.buyer.over = "" if left is None else self._purse.time_is_over()
            result = await work()
            await self.effects.drain()
            return result
        self.effects.buyer.over = ""
        limit = asyncio.timeout(None)
        watcher = asyncio.ensure_future(self._watch(limit))
        try:
            async with limit:
                result = await work()
                await self.effects.drain()
                return result
        except BudgetReached:
            await self.effects.drain(self._since_over(_GRACE))
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            raise BudgetReached(self.effects.buyer.over) from None
        finally:
            watcher.cancel()

    async def _watch(self, limit: asyncio.Timeout) -> None:
        while (left := self._since_over(0.0)) > 0:
            await asyncio.sleep(min(left, _LOOK))
        self.effects.buyer.over = self._purse.time_is_over()
        await self.effects.drain(max(0.0, self._since_over(_GRACE)))
        await asyncio.sleep(max(0.0, self._since_over(_SETTLED)))
        limit.reschedule(asyncio.get_running_loop().time())

    def _since_over(self, seconds: float) -> float:
        """Return how long it takes until the time has been over for so many seconds."""
        left = self._purse.left
        return 0.0 if left is None else left - self._purse.reserve + seconds
