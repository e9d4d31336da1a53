"""The updates that are under way, and what they wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._effects import silence
from combee_dspy.search._plans import UpdatePlan

__all__ = ["Update", "Updates"]


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class Update:
    """One update under way.

    Attributes:
        plan: What it runs.
        before: The update before it, if any.
        proposed: Done when it has proposed.
        gate: Done when it may commit: when every update that must not know of it has begun.
        committed: Done when it is committed.
        began, started: When it began: monotonic seconds, and Unix time.
        task: What carries it out.
    """

    plan: UpdatePlan
    before: Update | None
    proposed: asyncio.Future[None] = field(default_factory=_future)
    gate: asyncio.Future[None] = field(default_factory=_future)
    committed: asyncio.Future[None] = field(default_factory=_future)
    began: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None

    async def turn(self) -> None:
        """Wait until it may commit.

        What it sees of the others is a function of its number from here on.
        """
        await self.gate
        if self.before is not None:
            await asyncio.shield(self.before.committed)


class Updates:
    """Updates by number. Lives on the search's loop.

    Attributes:
        spent: Whether a budget has ended one of them.
    """

    def __init__(self) -> None:
        self._updates: dict[int, Update] = {}
        self._broken = _future()
        self.spent = False

    def start(self, plan: UpdatePlan, work: Callable[[Update], Awaitable[None]]) -> Update:
        """Carry out an update, and tell whoever waits for it what ended it."""
        update = self._updates[plan.step] = Update(plan, self._updates.get(plan.step - 1))
        update.task = asyncio.ensure_future(self._carry_out(update, work))
        return update

    async def _carry_out(self, update: Update, work: Callable[[Update], Awaitable[None]]) -> None:
        futures = (update.proposed, update.committed)
        try:
            await work(update)
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            if isinstance(error, BudgetReached):
                self.spent = True
            elif not self._broken.done():
                self._broken.set_exception(error)
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    silence(future)
        finally:
            update.before = None  # nothing is held of updates that have ended

    def open(self, last: int) -> None:
        """Let updates up to ``last`` commit."""
        for step, update in self._updates.items():
            if step <= last and not update.gate.done():
                update.gate.set_result(None)

    async def wait(self, step: int, *, proposed: bool = False) -> None:
        """Wait until an update is committed, or has proposed; at once for one that has ended.

        Raises:
            Exception: What it failed with, or what broke another one meanwhile.
        """
        if step not in self._updates:
            return
        update = self._updates[step]
        future = update.proposed if proposed else update.committed
        await asyncio.wait({future, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        await (self._broken if self._broken.done() else future)

    def forget(self, step: int) -> None:
        """Let go of an update that is committed."""
        self._updates.pop(step, None)

    @property
    def steps(self) -> list[int]:
        """The numbers of those under way, ascending."""
        return sorted(self._updates)

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = [update.task for update in self._updates.values() if update.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._broken.done():
            silence(self._broken)
