"""At most so many effects in flight, the most urgent first."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from combee_dspy.costs import merged
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts._base import ExecutorSession
from combee_dspy.rollouts._batching import Batches, Batching, Priority, Queue, Turn
from combee_dspy.rollouts._jobs import Answer, CallJob, InfrastructureFaultError, RolloutJob
from combee_dspy.rollouts._limits import Limit, Outcome
from combee_dspy.rollouts._patient import REJECTED
from combee_dspy.rollouts._retries import again

T = TypeVar("T")
R = TypeVar("R", Rollout, Answer)


class Slots:
    """Every effect of the searches that share it goes through here. Lives on one event loop.

    Cancelling who awaits an effect takes it out of the queue; one that is under way in a thread ends there unheard.

    Args:
        session: Carries effects out. Owned: closed by :meth:`close`.
        limit: How many may be in flight.
        batching: When and in what company they go; ``None`` for as soon as there is a slot.
        attempts: How often an effect is tried at most where the service fails in passing; one that is full is
            waited for.
        on_change: Called with the new limit and the reason after each change of it, on the loop.
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
        limit.on_change = on_change
        self._attempts = attempts
        self._queue: Queue = Queue() if batching is None else Batches(batching)
        self._direct = batching is None
        self._numbers = itertools.count()
        self._flying = 0
        self._bell: asyncio.TimerHandle | None = None
        self._pauses: dict[asyncio.Future[None], Priority] = {}

    @property
    def capacity(self) -> int:
        """How many effects may be in flight now."""
        return self._limit.current

    @property
    def in_flight(self) -> int:
        """How many are."""
        return self._flying

    async def rollout(self, job: RolloutJob, priority: Priority) -> Rollout:
        """Carry out a rollout, again where the service failed in passing.

        Returns:
            The rollout, with the usage of every attempt; the failed one where nobody can tell whom to blame.

        Raises:
            InfrastructureError: The service is to blame; carries the usage spent.
        """
        rollout = await self._bought(partial(self.session.rollout, job), priority, "rollout", id(job.program), job)
        self._queue.heard(rollout.score)
        return rollout

    async def call(self, job: CallJob, priority: Priority) -> Answer:
        """Carry out an LM call, again where the service failed in passing.

        Returns:
            The answer, with the usage of every attempt.

        Raises:
            InfrastructureError: The service is to blame; carries the usage spent.
        """
        group = id(job.signature)
        return await self._bought(partial(self.session.call, job), priority, job.signature.__name__, group, job)

    async def run(self, work: Callable[[], T], priority: Priority) -> T:
        """Carry out any synchronous work in a worker thread, in a slot, once."""
        result, _ = await self._once(partial(self.session.run, work), priority, "work", 0, 0)
        return result

    def withdraw(self, search: int) -> None:
        """Take back what waits for one search, whose number stands last in its priorities; what runs goes on."""
        for turn in self._queue.waiting():
            if turn.priority[-1] == search:
                turn.future.cancel()
        for pause, priority in self._pauses.items():
            if priority[-1] == search:
                pause.cancel()

    async def close(self) -> None:
        """Cancel what waits, wait for what runs, and close the session."""
        if self._bell is not None:
            self._bell.cancel()
        while isinstance(turn := self._queue.pop(1, 1, math.inf), Turn):
            turn.future.cancel()
        for pause in self._pauses:
            pause.cancel()
        await self.session.close()

    async def _bought(
        self,
        work: Callable[[], Awaitable[R]],
        priority: Priority,
        lane: str,
        group: int,
        job: RolloutJob | CallJob,
    ) -> R:
        started = time.monotonic()
        spent: list[tuple[CallUsage, ...]] = []

        async def attempt() -> tuple[R, float]:
            try:
                return await self._once(work, priority, lane, group, job.tokens or 0)
            except InfrastructureFaultError as fault:
                spent.append(fault.usage)
                raise

        try:
            result, began = await again(attempt, self._attempts, partial(self._pause, priority))
        except InfrastructureFaultError as fault:
            if fault.rollout is None:
                raise InfrastructureError(1, len(spent), str(fault), merged(*spent)) from fault
            # Only a rollout's fault carries one.
            return replace(fault.rollout, usage=merged(*spent), queue_seconds=0.0)  # type: ignore[return-value]
        usage = merged(*spent, result.usage) if spent else result.usage
        return replace(result, usage=usage, queue_seconds=began - started)

    async def _pause(self, priority: Priority, seconds: float) -> None:
        pause = asyncio.ensure_future(asyncio.sleep(seconds))
        self._pauses[pause] = priority
        try:
            await pause
        finally:
            del self._pauses[pause]

    async def _once(
        self, work: Callable[[], Awaitable[T]], priority: Priority, lane: str, group: int, tokens: int
    ) -> tuple[T, float]:
        """Carry out one attempt in a slot; return its result and when it began."""
        began = time.monotonic()
        limit, number = self._limit, next(self._numbers)
        if self._direct and not self._queue and self._flying < limit.current and limit.held_until <= began:
            self._flying += 1
        else:
            company = (0, 0) if self._direct else (group, tokens.bit_length())
            await self._slot(priority, company, number, began, tokens)
            began = time.monotonic()
        dispatch = limit.started(lane, began)
        outcome: Outcome = "cancelled"
        token = REJECTED.set(partial(self._rejected_there, asyncio.get_running_loop(), number))
        try:
            result = await work()
            outcome = "ok"
            return result, began
        except InfrastructureFaultError as fault:
            outcome = "failed"
            if fault.rejected:
                self._rejected(number, fault.retry_after)
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            REJECTED.reset(token)
            self._flying -= 1
            limit.ended(dispatch, outcome, time.monotonic())
            self._wake()

    async def _slot(self, priority: Priority, group: tuple[int, int], number: int, since: float, tokens: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self._queue.push(Turn(priority, group, number, since, tokens, future))
        if self._flying < self._limit.current:
            self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # the slot came together with the cancellation
                self._flying -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        """Give free slots to the most urgent."""
        if not self._queue:
            return
        now = time.monotonic()
        if self._limit.held_until > now:
            self._ring(self._limit.held_until, now)
            return
        while (free := self._limit.current - self._flying) > 0:
            turn = self._queue.pop(free, self._limit.current, now)
            if not isinstance(turn, Turn):
                self._ring(turn, now)
                return
            if not turn.future.done():
                self._flying += 1
                turn.future.set_result(None)

    def _ring(self, when: float, now: float) -> None:
        if self._bell is not None:
            self._bell.cancel()
            self._bell = None
        if when < math.inf:
            self._bell = asyncio.get_running_loop().call_later(when - now, self._wake)

    def _rejected_there(self, loop: asyncio.AbstractEventLoop, who: int, retry_after: float | None) -> None:
        with suppress(RuntimeError):  # it comes from a worker thread, and the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._rejected, who, retry_after)

    def _rejected(self, who: int, retry_after: float | None) -> None:
        self._limit.rejected(retry_after, time.monotonic(), who)
