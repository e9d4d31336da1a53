"""At most so many effects in flight, the most urgent first."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from combee_dspy.costs import merged
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts._alarm import Alarm
from combee_dspy.rollouts._attempt import (
    ATTEMPT,
    NEVER,
    REPEATS,
    Attempt,
    Deadline,
    Halt,
    run_within,
)
from combee_dspy.rollouts._batching import Batching, Priority, Queue, Turn
from combee_dspy.rollouts._executors import ExecutorSession, Threads
from combee_dspy.rollouts._jobs import (
    AbandonedError,
    Answer,
    CallJob,
    InfrastructureFaultError,
    RolloutJob,
)
from combee_dspy.rollouts._limits import Adaptive, Fixed, Limit, Outcome
from combee_dspy.rollouts._patient import PATIENCE, Patience, seconds_after

T = TypeVar("T")
R = TypeVar("R")

# Further attempts at an effect where nobody can tell whom to blame; a service that is full or down
# is waited for.
_REPEATED = 2
# In flight at first and at most, outside of a search, where the user names no number.
_START, _MOST = 16, 256

Check = Callable[[], Awaitable[None]]
"""Raises where an effect may not begin any more, now that there is a slot for it."""


class Slots:
    """Runs every effect of the searches that share it. Lives on one event loop.

    Cancelling the wait for an effect takes it out of the queue. An effect that runs is given up: it
    ends with an ``AbandonedError`` that has its cost, and its later LM calls are refused.

    Args:
        session: Runs effects. Owned: closed by :meth:`close`.
        limit: How many may be in flight.
        batching: When they go; ``None`` for as soon as a slot is free.
        patience: Seconds that an effect waits for such a service, from its last answer on.
        on_change: Called with the new limit and the reason after each change of it, on the loop.
    """

    def __init__(
        self,
        session: ExecutorSession,
        limit: Limit,
        batching: Batching | None = None,
        *,
        patience: float = PATIENCE,
        on_change: Callable[[int, str], None] | None = None,
    ) -> None:
        self.session = session
        self._limit = limit
        limit.on_change = on_change
        self._patience = patience
        self._alarm = Alarm(patience)
        self._queue = Queue(batching or Batching())
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
        """Run a rollout, again where the service failed for a while; its usage is that of all
        attempts.

        Where nobody can tell whom to blame, it ends as the failed rollout.

        Args:
            job: The rollout.
            priority: When it goes.
            check: Awaited once the first attempt has its slot. Where it raises, nothing is sent.

        Raises:
            InfrastructureError: The service is to blame; has the usage of all attempts.
            Exception: What ``check`` raised.
        """
        rollout = await self._repeat(partial(self.session.rollout, job), priority, job, check)
        self._queue.note_score(rollout.score)
        return rollout

    async def call(self, job: CallJob, priority: Priority, check: Check | None = None) -> Answer:
        """Run an LM call in the same way; may raise the same."""
        return await self._repeat(partial(self.session.call, job), priority, job, check)

    async def run(
        self,
        work: Callable[[], T],
        priority: Priority,
        check: Check | None = None,
        seconds: float | None = None,
    ) -> T:
        """Run any synchronous work in a worker thread, again where a service failed for a while.

        Raises:
            RolloutTimeoutError: It took longer than ``seconds``.
            InfrastructureError: The service is to blame.
        """
        send = partial(run_within, seconds, partial(self.session.run, work))
        return await self._repeat(send, priority, None, check)

    @contextmanager
    def refusing(self, search: int) -> Iterator[None]:
        """Take back, for as long as this lasts, what waits for one search; what runs goes on.

        What waits for a slot for the first time is cancelled. What has had an attempt, or waits in
        an LM for a full service, ends with an ``InfrastructureError`` that has its usage.

        Args:
            search: The number that stands last in its priorities.
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
        self._alarm.answered()
        for halt in self._halts.values():
            halt.set()
        for turn in self._queue.waiting():
            turn.future.cancel()
        await self.session.close()

    async def _repeat(
        self,
        send: Callable[[], Awaitable[R]],
        priority: Priority,
        job: RolloutJob | CallJob | None,
        check: Check | None,
    ) -> R:
        """Make attempts at an effect until one ends well or no other is worth it."""
        started, deadline, repeats = time.monotonic(), Deadline(self._patience), REPEATS.get()
        patience, halt = Patience(_REPEATED, deadline), self._halts[priority[-1]]
        spent: list[tuple[CallUsage, ...]] = []  # by failed attempts, and not booked
        attempts, pause = 0, 0.0
        while True:
            try:
                if attempts and (
                    not repeats.allow(_calls(spent[-1]) if spent else 0) or await halt.sleep(pause)
                ):
                    break
                result, began = await self._attempt(
                    send, priority, job, None if attempts else check, deadline
                )
            except InfrastructureFaultError as error:
                fault = error
                attempts += 1
                seconds = seconds_after(fault, patience)
                if seconds is None or not await repeats.book(fault.usage, str(fault)):
                    spent.append(fault.usage)
                if seconds is None:
                    if fault.rollout is None:
                        break
                    # Only a rollout's fault has one.
                    return replace(fault.rollout, usage=merged(*spent))  # type: ignore[return-value]
                pause = seconds
            except asyncio.CancelledError as cancelled:
                usage = cancelled.usage if isinstance(cancelled, AbandonedError) else ()
                if attempts and not usage and halt.is_set():
                    break
                raise AbandonedError(merged(*spent, usage)) from None
            else:
                return _with_costs(result, spent, began - started)
        is_late = (fault.rejected or fault.outage) and not halt.is_set()
        late = f" (Search(patience={self._patience:g}) seconds have passed)" if is_late else ""
        raise InfrastructureError(1, attempts, f"{fault}{late}", merged(*spent)) from fault

    async def _attempt(
        self,
        send: Callable[[], Awaitable[T]],
        priority: Priority,
        job: RolloutJob | CallJob | None,
        check: Check | None,
        deadline: Deadline | None = None,
    ) -> tuple[T, float]:
        """Make one attempt in a slot; return its result and when it began."""
        limit, number, halt = self._limit, next(self._numbers), self._halts[priority[-1]]
        if halt.is_set():
            raise asyncio.CancelledError
        await self._slot(priority, number)
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
        rejected = partial(self._rejected_in_thread, asyncio.get_running_loop(), number)
        attempt = Attempt(rejected, halt, deadline)
        token = ATTEMPT.set(attempt)
        try:
            result = await send()
            outcome = "ok"
            if isinstance(result, (Rollout, Answer)):
                calls = sum(row.calls - row.errors for row in result.usage) or 1
                self._alarm.answered()
            return result, began
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise AbandonedError(attempt.give_up()) from None
        except InfrastructureFaultError as fault:
            if fault.rejected:
                self._rejected(number, fault.retry_after)
            else:
                self._alarm.failed(str(fault))
            raise
        finally:
            ATTEMPT.reset(token)
            attempt.halt = NEVER
            limit.ended(dispatch, outcome, time.monotonic(), calls)
            self._release()

    async def _slot(self, priority: Priority, number: int) -> None:
        """Wait for a slot."""
        limit, now = self._limit, time.monotonic()
        is_free = self._flying < limit.current and limit.held_until <= now
        if self._direct and is_free and not self._queue:
            self._flying += 1
            return
        future = asyncio.get_running_loop().create_future()
        self._queue.push(Turn(priority, number, now, future))
        if self._flying < limit.current:
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

    def _rejected_in_thread(
        self, loop: asyncio.AbstractEventLoop, number: int, retry_after: float | None
    ) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._rejected, number, retry_after)

    def _rejected(self, number: int, retry_after: float | None) -> None:
        self._alarm.failed("too many requests (HTTP 429 or 503)")
        self._limit.rejected(retry_after, time.monotonic(), number)


def _with_costs(result: R, spent: Sequence[tuple[CallUsage, ...]], queued: float) -> R:
    """Return a result with what failed attempts have spent; other work books that by itself."""
    if not isinstance(result, (Rollout, Answer)):
        return result
    return replace(result, usage=merged(*spent, result.usage), queue_seconds=queued)


def _calls(usage: tuple[CallUsage, ...]) -> int:
    """Return how many calls another attempt sends again; those that an LM repeated count once."""
    return max(1, sum(max(row.calls - row.errors, min(row.calls, 1)) for row in usage))


@asynccontextmanager
async def open_slots(num_threads: int | None) -> AsyncIterator[Slots]:
    """Yield slots in threads of this process, for work that is no search.

    Args:
        num_threads: Most effects in flight; ``None`` to find out how many the service takes.
    """
    most = _MOST if num_threads is None else num_threads
    limit = Adaptive(_START, most) if num_threads is None else Fixed(most)
    slots = Slots(Threads().start(most), limit)
    try:
        yield slots
    finally:
        await slots.close()
