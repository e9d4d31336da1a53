"""One attempt at a rollout or an LM call: how long it may take, how long it waits, how it is given
up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import dspy

from combee_dspy.costs import CallRefusedError, Meter
from combee_dspy.records import CallUsage, FailedCall, Rollout, described
from combee_dspy.rollouts._jobs import Answer, CallJob, RolloutJob, RolloutTimeoutError

T = TypeVar("T")


class Halt(threading.Event):
    """Once set, ends every wait for a service, in any thread and on any loop."""

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: set[Callable[[], object]] = set()

    async def sleep(self, seconds: float) -> bool:
        """Do what :meth:`wait` does without blocking the loop."""
        woken = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
        self._sleepers.add(wake)
        try:
            with suppress(TimeoutError):
                if not self.is_set():
                    await asyncio.wait_for(woken.wait(), seconds)
        finally:
            self._sleepers.discard(wake)
        return self.is_set()

    def set(self) -> None:
        """End all waits."""
        super().set()
        for wake in tuple(self._sleepers):
            with suppress(RuntimeError):  # its loop is closed: nobody sleeps there any more
                wake()


NEVER = Halt()


@dataclass(slots=True)
class Deadline:
    """When an effect gives a service up: ``patience`` seconds after the first trouble since the
    service's last answer.
    """

    patience: float
    until: float | None = None

    def allows(self, seconds: float) -> bool:
        """Return whether the next attempt may begin in so many seconds."""
        now = time.monotonic()
        if self.until is None:
            self.until = now + self.patience
        return now + seconds <= self.until


class Repeats:
    """Decides whether an effect may send a call again, and books what failed attempts cost.

    This one allows everything and books nothing; a search has one by its budget. Thread-safe.
    """

    def allow(self, calls: int = 1) -> bool:
        """Return whether so many calls that failed may be sent again."""
        return True

    async def book(self, usage: tuple[CallUsage, ...], reason: str) -> bool:
        """Book what a failed attempt cost, before the next one begins.

        Returns:
            Whether it is booked: the effect's own usage then leaves it out.
        """
        return False

    def lose(self) -> None:
        """Note a call without a readable answer, which the service may have charged for."""


REPEATS: ContextVar[Repeats] = ContextVar("combee_repeats", default=Repeats())  # noqa: B039 - it has no state
"""Those of the effect that runs here."""


@dataclass(slots=True)
class Attempt:
    """What LM calls know of the attempt that they belong to. Set by slots, used from any thread.

    Attributes:
        rejected: Called after each rejection with the seconds that the service asks to wait.
        halt: Ends waits; :data:`NEVER` once the attempt has ended: a thread that a program left
            behind may go on.
        deadline: When the effect gives the service up; ``None`` outside of one.
        waits: Called before each wait for a service with its seconds.
        meters: Meters of the attempt's calls, the outermost first.
        failed: Returns the rollout as failed by now; ``None`` before a rollout has begun.
        given_up: Whether nobody waits for the attempt any more.
        repeats: Decides whether a failed call may be sent again.
    """

    rejected: Callable[[float | None], None] = lambda retry_after: None
    halt: Halt = NEVER
    deadline: Deadline | None = None
    waits: Callable[[float], None] = lambda seconds: None
    meters: list[Meter] = field(default_factory=list)
    failed: Callable[[BaseException], Rollout] | None = None
    given_up: bool = False
    repeats: Repeats = field(default_factory=REPEATS.get)

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether the attempt must end now.

        Raises:
            CallRefusedError: It was given up meanwhile.
        """
        self.waits(seconds)
        halt = self.halt
        return self._ends(halt.wait(seconds), halt)

    async def sleep(self, seconds: float) -> bool:
        """Do what :meth:`wait` does without blocking the loop."""
        self.waits(seconds)
        halt = self.halt
        return self._ends(await halt.sleep(seconds), halt)

    def _ends(self, halted: bool, halt: Halt) -> bool:
        if self.given_up:
            raise CallRefusedError
        return halted and self.halt is halt

    def add(self, meter: Meter) -> None:
        """Add a meter of the attempt's calls; the outermost reports lost answers."""
        if not self.meters:
            meter.lose = self.repeats.lose
        self.meters.append(meter)
        if self.given_up:
            meter.close()

    def give_up(self) -> tuple[CallUsage, ...]:
        """Refuse every later LM call of the attempt, and return what it has cost by now."""
        self.given_up = True
        usages = [meter.close() for meter in self.meters]
        return usages[0] if usages else ()


ATTEMPT: ContextVar[Attempt | None] = ContextVar("combee_attempt", default=None)
_OUTSIDE = Attempt()
# DSPy carries its settings into the threads of dspy.Parallel, which context variables do not reach.
_SETTING = "combee_attempt"


def attempt_setting() -> dict[str, Any]:
    """Return what ``dspy.context`` needs so that calls in DSPy's own threads find the attempt."""
    return {_SETTING: ATTEMPT.get()}


def attempt_here() -> Attempt:
    """Return the attempt that runs here; outside of one an attempt without limits."""
    attempt: Attempt = ATTEMPT.get() or dspy.settings.get(_SETTING) or _OUTSIDE
    return attempt


def note_meter(meter: Meter) -> None:
    """Close a meter when the attempt that runs here is given up. Outside of one nothing happens."""
    if (attempt := ATTEMPT.get()) is not None:
        attempt.add(meter)


def is_own_cancellation(error: BaseException) -> bool:
    """Return whether an error cancels the task that runs here, and is no error of a program."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def run_in_time(job: RolloutJob, run: Callable[[], Awaitable[Rollout]]) -> Rollout:
    """Run an attempt at a rollout for at most ``job.seconds``; a longer one has failed.

    A late attempt is cancelled, its result is dropped, and its later LM calls are refused. The
    same happens to a program that cancels its own task.
    """
    attempt = _own_attempt()
    try:
        return await run_within(job.seconds, run)
    except (RolloutTimeoutError, asyncio.CancelledError) as error:
        if is_own_cancellation(error):
            raise
        attempt.give_up()
        if attempt.failed is not None:
            return attempt.failed(error)
        return Rollout(
            job.example_id,
            job.failure_score,
            error=described(error),
            failed_in="program",
            seconds=job.seconds or 0.0,
        )


async def call_in_time(job: CallJob, run: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run an attempt at an LM call for at most ``job.seconds``; a longer one has failed."""
    try:
        return await run_within(job.seconds, run)
    except RolloutTimeoutError as error:
        return Answer(FailedCall(described(error)), error.usage, job.seconds or 0.0)


async def run_within(seconds: float | None, run: Callable[[], Awaitable[T]]) -> T:
    """Run an attempt for at most so many seconds; waits for a full service do not count.

    Raises:
        RolloutTimeoutError: It took longer, and was given up.
    """
    if seconds is None:
        return await run()
    attempt, loop = _own_attempt(), asyncio.get_running_loop()
    limit, waited_until = asyncio.timeout(seconds), 0.0

    def move(more: float) -> None:
        nonlocal waited_until
        now, when = loop.time(), limit.when()
        # Waits of several threads overlap, and count once.
        more, waited_until = now + more - max(now, waited_until), max(waited_until, now + more)
        with suppress(RuntimeError):  # it has ended meanwhile
            limit.reschedule((now if when is None else when) + max(0.0, more))

    def postpone(more: float) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(move, more)

    try:
        async with limit:
            attempt.waits = postpone
            return await run()
    except TimeoutError:
        if not limit.expired():
            raise
        raise RolloutTimeoutError(seconds, attempt.give_up()) from None


def _own_attempt() -> Attempt:
    """Return the attempt of this context; a session that is used without slots gets a new one."""
    attempt = ATTEMPT.get()
    if attempt is None:
        ATTEMPT.set(attempt := Attempt())
    return attempt
