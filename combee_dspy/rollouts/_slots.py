"""At most so many effects in flight, the most urgent first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import Rollout
from combee_dspy.rollouts._base import ExecutorSession
from combee_dspy.rollouts._batching import Batching
from combee_dspy.rollouts._jobs import Answer, CallJob, InfrastructureFaultError, RolloutJob
from combee_dspy.rollouts._limits import Limit

__all__ = ["Priority", "Slots"]

T = TypeVar("T")

Priority = tuple[int, ...]
"""Smaller goes first."""


class Slots:
    """Every effect of the searches that share it goes through here. Lives on one event loop.

    Cancelling who awaits an effect takes it out of the queue.

    Args:
        session: Carries effects out. Owned: closed by :meth:`close`.
        limit: How many may be in flight.
        batching: When and in what company they go; ``None`` for as soon as there is a slot.
        attempts: How often an effect is tried at most where the service fails in passing; one that is full is
            waited for.
        on_change: Called with the new limit and the reason after each change.
    """

    def __init__(
        self,
        session: ExecutorSession,
        limit: Limit,
        batching: Batching | None = None,
        *,
        attempts: int = 3,
        on_change: Callable[[int, str], None] | None = None,
    ) -> None:
        self.session = session
        self._limit = limit
        self._attempts = attempts
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._count = itertools.count()
        self._flying = 0
        limit.on_change = on_change

    @property
    def capacity(self) -> int:
        """How many effects may be in flight now."""
        return self._limit.current

    async def rollout(self, job: RolloutJob, priority: Priority) -> Rollout:
        """Carry out a rollout, again where the service failed in passing.

        Returns:
            The rollout, with the usage of every attempt, or the failed one where nobody can tell whom to blame.

        Raises:
            InfrastructureError: The service is to blame; carries the usage spent.
        """
        rollout, waited = await self._carried_out(partial(self.session.rollout, job), priority)
        return replace(rollout, queue_seconds=waited)

    async def call(self, job: CallJob, priority: Priority) -> Answer:
        """Carry out an LM call, again where the service failed in passing.

        Raises:
            InfrastructureError: The service is to blame; carries the usage spent.
        """
        answer, waited = await self._carried_out(partial(self.session.call, job), priority)
        return replace(answer, queue_seconds=waited)

    async def run(self, work: Callable[[], T], priority: Priority) -> T:
        """Carry out any synchronous work in a worker thread, in a slot."""
        result, _ = await self._carried_out(partial(self.session.run, work), priority)
        return result

    async def close(self) -> None:
        """Cancel what waits, wait for what runs, and close the session."""
        for _, _, turn in self._waiting:
            turn.cancel()
        self._waiting.clear()
        await self.session.close()

    async def _carried_out(self, work: Callable[[], Awaitable[T]], priority: Priority) -> tuple[T, float]:
        submitted = time.monotonic()
        if self._flying >= self._limit.current or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (priority, next(self._count), turn))
            await self._turn(turn)
        else:
            self._flying += 1
        waited = time.monotonic() - submitted
        try:
            return await work(), waited
        except InfrastructureFaultError as fault:
            raise InfrastructureError(1, 1, str(fault), fault.usage) from fault
        finally:
            self._flying -= 1
            self._wake()

    async def _turn(self, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot came with the cancellation
                self._flying -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting and self._flying < self._limit.current:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                self._flying += 1
                turn.set_result(None)
