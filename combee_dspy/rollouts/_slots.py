"""At most so many effects in flight, the most urgent first."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from combee_dspy.costs import merged
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts._batching import Batches, Batching, Priority, Queue, Turn
from combee_dspy.rollouts._executors import ExecutorSession
from combee_dspy.rollouts._in_time import run_within
from combee_dspy.rollouts._jobs import (
    AbandonedError,
    Answer,
    CallJob,
    InfrastructureFaultError,
    RolloutJob,
)
from combee_dspy.rollouts._limits import Limit, Outcome
from combee_dspy.rollouts._patient import (
    NEVER,
    PATIENCE,
    SURROUNDINGS,
    Deadline,
    Halt,
    Patience,
    Surroundings,
    seconds_after,
)
from combee_dspy.rollouts._repeats import may_repeat, unbooked

T = TypeVar("T")
R = TypeVar("R", Rollout, Answer)

_logger = logging.getLogger(__name__)

# Seconds without an answer from a service in trouble, after each of which it is said.
_SILENCE = 30.0

Check = Callable[[], Awaitable[None]]
"""Raises where an effect may not begin any more, now that there is a slot for it."""


class Slots:
    """Every effect of the searches that share it goes through here. Lives on one event loop.

    Cancelling who awaits an effect takes it out of the queue. One that is under way is given up: it
    ends with an ``AbandonedError`` that says what it has cost, and LM calls that it would make
    later are refused.

    Args:
        session: Carries effects out. Owned: closed by :meth:`close`.
        limit: How many may be in flight.
        batching: When and in what company they go; ``None`` for as soon as there is a slot.
        attempts: How often an effect is tried at most where nobody can tell whom to blame; a
            service that is full or down is waited for.
        patience: Seconds that an effect waits for such a service, from its last answer on.
        on_change: Called with the new limit and the reason after each change of it, on the loop.
    """

    def __init__(
        self,
        session: ExecutorSession,
        limit: Limit,
        batching: Batching | None = None,
        *,
        attempts: int = 3,
        patience: float = PATIENCE,
        on_change: Callable[[int, str], None] | None = None,
    ) -> None:
        self.session = session
        self._limit = limit
        limit.on_change = on_change
        self._attempts, self._patience = attempts, patience
        self._troubles = 0  # since the service's last answer
        self._alarm: asyncio.TimerHandle | None = None
        self._queue: Queue = Queue() if batching is None else Batches(batching)
        self._direct = batching is None
        self._numbers = itertools.count()
        self._flying = 0
        self._timer: asyncio.TimerHandle | None = None
        self._halts: defaultdict[int, Halt] = defaultdict(Halt)

    @property
    def capacity(self) -> int:
        """How many effects may be in flight now."""
        return self._limit.current

    @property
    def served(self) -> int | None:
        """The most that the service was seen to take at once; ``None`` before it showed a bound."""
        return self._limit.served

    @property
    def queued(self) -> int:
        """How many effects wait for a slot."""
        return len(self._queue)

    async def rollout(
        self, job: RolloutJob, priority: Priority, check: Check | None = None
    ) -> Rollout:
        """Carry out a rollout, again where the service failed in passing; its usage is that of
        every attempt.

        Where nobody can tell whom to blame, it is the failed rollout in the end.

        Args:
            job: The rollout.
            priority: When it goes.
            check: Awaited once the first attempt has its slot. Where it raises, nothing is sent.

        Raises:
            InfrastructureError: The service is to blame; carries the usage spent.
            Exception: What ``check`` raised.
        """
        return await self._bought(partial(self.session.rollout, job), priority, job, check)

    async def call(self, job: CallJob, priority: Priority, check: Check | None = None) -> Answer:
        """Carry out an LM call in the same way; may raise the same. One that takes longer than
        ``job.seconds`` has failed.
        """
        return await self._bought(partial(self.session.call, job), priority, job, check)

    async def run(
        self,
        work: Callable[[], T],
        priority: Priority,
        check: Check | None = None,
        seconds: float | None = None,
    ) -> T:
        """Carry out any synchronous work in a worker thread, in a slot, once.

        Raises:
            RolloutTimeoutError: It took longer than so many seconds, if any were given.
        """
        carry_out = partial(run_within, seconds, partial(self.session.run, work))
        return (await self._once(carry_out, priority, None, check))[0]

    @contextmanager
    def refusing(self, search: int) -> Iterator[None]:
        """Take back, for as long as this lasts, what waits for one search; what runs goes on.

        What waits for a slot for the first time is cancelled. What has cost something already, and
        waits to be tried again or, in an LM, for a service that is full, ends with an
        InfrastructureError that says what. ``search`` is the number that stands last in its
        priorities.
        """
        self._halts[search].set()
        for turn in self._queue.waiting():
            if turn.priority[-1] == search:
                turn.future.cancel()
        try:
            yield
        finally:
            self._halts.pop(search, None)

    async def close(self) -> None:
        """Cancel what waits, wait for what runs, and close the session."""
        if self._timer is not None:
            self._timer.cancel()
        self._answered()
        for halt in self._halts.values():
            halt.set()
        for turn in self._queue.waiting():
            turn.future.cancel()
        await self.session.close()

    async def _bought(
        self,
        work: Callable[[], Awaitable[R]],
        priority: Priority,
        job: RolloutJob | CallJob,
        check: Check | None,
    ) -> R:
        """Carry out an effect until an attempt ends well or no other is worth it."""
        started, deadline = time.monotonic(), Deadline(self._patience)
        patience, halt = Patience(self._attempts - 1, deadline), self._halts[priority[-1]]
        spent: list[tuple[CallUsage, ...]] = []  # and in no book yet
        seconds: float | None = None
        attempts = 0
        while True:
            try:
                if attempts and (not may_repeat(*spent[-1:]) or await halt.sleep(seconds or 0.0)):
                    break
                result, began = await self._once(
                    work, priority, job, None if attempts else check, deadline
                )
            except InfrastructureFaultError as error:
                fault = error
                attempts += 1
                seconds = seconds_after(fault, patience)
                spent += await unbooked(fault.usage, str(fault), goes_on=seconds is not None)
                if seconds is None:
                    if fault.rollout is None:
                        break
                    # Only a rollout's fault carries one.
                    return replace(fault.rollout, usage=merged(*spent))  # type: ignore[return-value]
            except asyncio.CancelledError as cancelled:
                more = cancelled.usage if isinstance(cancelled, AbandonedError) else ()
                if attempts and not more and halt.is_set():
                    break
                raise AbandonedError(merged(*spent, more)) from None
            else:
                self._queue.note(job, result)
                usage = merged(*spent, result.usage)
                return replace(result, usage=usage, queue_seconds=began - started)
        reason = str(fault)
        if fault.retryable and not halt.is_set():
            reason += f" (Search(patience={self._patience:g}) seconds have passed)"
        raise InfrastructureError(1, attempts, reason, merged(*spent)) from fault

    async def _once(
        self,
        work: Callable[[], Awaitable[T]],
        priority: Priority,
        job: RolloutJob | CallJob | None,
        check: Check | None,
        deadline: Deadline | None = None,
    ) -> tuple[T, float]:
        """Carry out one attempt in a slot; return its result and when it began."""
        limit, number, halt = self._limit, next(self._numbers), self._halts[priority[-1]]
        if halt.is_set():
            raise asyncio.CancelledError
        since = time.monotonic()
        if (
            self._direct
            and self._flying < limit.current
            and limit.held_until <= since
            and not self._queue
        ):
            self._flying += 1
        else:
            await self._slot(priority, job, number, since)
        if check is not None:
            try:
                await check()
            except BaseException:
                self._release()
                raise
        began = time.monotonic()
        dispatch = limit.started(job.lane if job else "work", began)
        outcome: Outcome = "failed"
        calls = 1
        rejected = partial(self._rejected_there, asyncio.get_running_loop(), number)
        here = Surroundings(rejected, halt, deadline)
        token = SURROUNDINGS.set(here)
        try:
            result = await work()
            outcome = "ok"
            calls = sum(row.calls - row.errors for row in getattr(result, "usage", ())) or 1
            if job is not None:
                self._answered()
            return result, began
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise AbandonedError(here.give_up()) from None
        except InfrastructureFaultError as fault:
            if fault.rejected:
                self._rejected(number, fault.retry_after)
            else:
                self._troubled(str(fault))
            raise
        finally:
            SURROUNDINGS.reset(token)
            here.halt = NEVER
            limit.ended(dispatch, outcome, time.monotonic(), calls)
            self._release()

    async def _slot(
        self, priority: Priority, job: RolloutJob | CallJob | None, number: int, since: float
    ) -> None:
        future = asyncio.get_running_loop().create_future()
        group, tokens = self._queue.group(job) if job else ((0, 0), 0)
        self._queue.push(Turn(priority, group, number, since, tokens, future))
        if self._flying < self._limit.current:
            self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # the slot came together with the cancellation
                self._release()
            raise

    def _release(self) -> None:
        self._flying -= 1
        self._wake()

    def _wake(self) -> None:
        """Give free slots to the most urgent."""
        if not self._queue:
            return
        now = time.monotonic()
        if self._limit.held_until > now:
            self._wake_at(self._limit.held_until, now)
            return
        while (free := self._limit.current - self._flying) > 0:
            turn = self._queue.pop(free, self._limit.current, now)
            if not isinstance(turn, Turn):
                self._wake_at(turn, now)
                return
            if not turn.future.done():
                self._flying += 1
                turn.future.set_result(None)

    def _wake_at(self, when: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if when < math.inf:
            self._timer = asyncio.get_running_loop().call_later(when - now, self._wake)

    def _rejected_there(
        self, loop: asyncio.AbstractEventLoop, who: int, retry_after: float | None
    ) -> None:
        with suppress(
            RuntimeError
        ):  # it comes from a worker thread, and the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._rejected, who, retry_after)

    def _answered(self) -> None:
        self._troubles = 0
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _troubled(self, why: str) -> None:
        self._troubles += 1
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(_SILENCE, self._warn, why, 1)

    def _warn(self, why: str, times: int) -> None:
        _logger.warning(
            "No answer for %g seconds, only %d times: %s. The service is waited for; a rollout or"
            " call that has waited for %g seconds ends the run, with everything kept"
            " (Search(patience=…)).",
            times * _SILENCE,
            self._troubles,
            why,
            self._patience,
        )
        self._alarm = asyncio.get_running_loop().call_later(_SILENCE, self._warn, why, times + 1)

    def _rejected(self, who: int, retry_after: float | None) -> None:
        self._troubled("too many requests (HTTP 429 or 503)")
        self._limit.rejected(retry_after, time.monotonic(), who)
