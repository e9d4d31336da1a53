"""One scheduler for a whole run: every task goes through it, the most urgent first."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from concurrent.futures import Future
from os import PathLike
from typing import Any, TypeVar, cast

from combee_dspy.events import Event
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts._base import CURRENT_SESSION, ExecutorSession
from combee_dspy.rollouts.scheduling._account import ScheduleAccount
from combee_dspy.rollouts.scheduling._announce import Announcer, Decided
from combee_dspy.rollouts.scheduling._core import Core
from combee_dspy.rollouts.scheduling._dispatcher import Dispatcher
from combee_dspy.rollouts.scheduling._gate import GuardedLimit, GuardedRule
from combee_dspy.rollouts.scheduling._job import Job, Ticket
from combee_dspy.rollouts.scheduling._limit import ConcurrencyLimit, FixedLimit
from combee_dspy.rollouts.scheduling._place import SPECULATIVE, Place, current_place
from combee_dspy.rollouts.scheduling._preemption import to_recall
from combee_dspy.rollouts.scheduling._queue import LaneQueues, TaskQueue
from combee_dspy.rollouts.scheduling._record import Recorded, ReplayQueue, ScheduleRecord
from combee_dspy.rollouts.scheduling._settings import Scheduling
from combee_dspy.rollouts.scheduling._teller import Teller
from combee_dspy.rollouts.scheduling._tenants import Tenants

__all__ = ["Scheduler"]

T = TypeVar("T")


class Scheduler:
    """The session of a whole run, over the session of any executor.

    Tasks wait here, not in the inner session, which gets no more than
    ``limit`` allows at a time: so the most urgent goes next, whenever it
    arrived. A task belongs where ``with placed(Place(…))`` says around its
    submission. No thread dispatches: who submits a task, or ends one, sends
    the next, in microseconds.

    A task sees this session as the current one. A worker that asks for the
    result of a task that still waits does it itself, so nested waits end
    with one slot too. A future's callbacks run before its slot is given on,
    so that what they submit competes for it.

    Replay: tasks go to the inner session in the recorded order, whatever the
    number of workers, as long as every recorded key is submitted again, at
    the latest ``patience`` seconds after all before it have ended and
    nothing else was submitted. Keys that stay away are given up then. When
    tasks end, how many are in flight and where flushes lie is not replayed;
    flush rules are not asked. See :class:`ReplayQueue` for tasks that the record does not know.

    Thread-safe. Owns the inner session.

    Args:
        inner: Carries tasks out. Its workers bound the limit.
        scheduling: How it decides.
        limit: Tasks in flight; by default as many as ``inner`` has workers.
        emit: Hears each decision, from a thread of the scheduler's own. A ``BaseException``
            by which a hook ends the run is raised by the next :meth:`submit` outside a task, or by :meth:`close`.
        record: The file for the schedule, JSONL, which is replaced.
        replay: The schedule to follow, or its file.
        clock: Seconds that only grow.

    Raises:
        ArgumentTypeError: A setting has a type that cannot be used.
        ArgumentValueError: A setting is out of its range, or ``replay`` is no schedule.
        OSError: A file cannot be opened.
    """

    awaits: bool
    """Whether coroutine functions are tasks too, as for the inner session."""

    run_rollout: Callable[..., Any]
    """The inner session's, where it has one."""

    def __init__(
        self,
        inner: ExecutorSession,
        scheduling: Scheduling | None = None,
        *,
        limit: ConcurrencyLimit | None = None,
        emit: Callable[[Event], None] | None = None,
        record: str | PathLike[str] | None = None,
        replay: ScheduleRecord | str | PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = scheduling if scheduling is not None else Scheduling()
        settings.validate()
        self._settings = settings
        self._inner = inner
        self.awaits = getattr(inner, "awaits", False) is True
        self._there = getattr(inner, "run_rollout", None)
        if self._there is not None:
            self.run_rollout = self._there
        self._ranks = {lane: rank for rank, lane in enumerate(settings.order)}
        self._limit = GuardedLimit(limit if limit is not None else FixedLimit(inner.workers), inner.workers)
        self._rule = GuardedRule(settings.flush)
        self._clock = clock
        self._tenants = Tenants()
        queue = _queue(settings, replay, self._tenants)
        self._core = Core(settings, queue, self._limit, self._rule, replays=replay is not None, now=clock())
        self._announcer = Announcer(emit, record)
        self._teller = Teller(self._announcer.tell, self.look, clock)
        self._dispatcher = Dispatcher(
            self,
            inner,
            self._core,
            self._limit,
            self._rule,
            self._teller,
            wanted=self._announcer.wanted,
            clock=clock,
        )
        self._lock = self._dispatcher.lock
        self._ended_at: float | None = None

    @property
    def workers(self) -> int:
        """How many tasks run at once at most: the inner session's workers."""
        return self._inner.workers

    @property
    def slots(self) -> int:
        """How many tasks may be in flight now, by the limit."""
        with self._lock:
            return self._core.slots

    @property
    def inner(self) -> ExecutorSession:
        """The session that carries tasks out. Not to be closed, nor to be given tasks."""
        return self._inner

    def submit(self, task: Callable[..., T], /, *args: Any) -> Future[T]:
        """Queue a task at the current place. It runs in a copy of the caller's context variables.

        Raises:
            ArgumentValueError: The place names no lane of this scheduler.
            RuntimeError: The session is closed.
        """
        place = current_place()
        self._check(place)
        if CURRENT_SESSION.get() is not self:
            self._announcer.raise_ending()
        job = Job(0, place)
        job.task = task if self._there is None else self._mapped(task)
        job.args = args
        job.context = contextvars.copy_context()
        job.ticket = Ticket(self._dispatcher, job)
        with self._lock:
            if self._core.closed:
                raise RuntimeError("the session is closed")
            self._core.submit(job, self._clock())
            full = len(self._core.flying) >= self._core.slots
        if full and self._settings.preempt != "drain":
            self._make_way(place.lane, place.iteration)
        if not full:
            # What is in flight sends the next when it ends.
            self._dispatcher.send()
        return cast("Future[T]", job.ticket)

    def _mapped(self, task: Callable[..., Any]) -> Callable[..., Any]:
        # A session of other processes knows a rollout by its function, which it cannot see within ours.
        from combee_dspy.rollouts._run import run_rollout  # it brings dspy's teleprompters

        return self.run_rollout if task is run_rollout else task

    def move(self, future: Future[Any], place: Place) -> bool:
        """Give a task that still waits another place: for what was begun ahead and is wanted now.

        Args:
            future: What :meth:`submit` returned.
            place: Where it belongs from now on. It keeps the key that it was submitted with.

        Returns:
            Whether it still waited.

        Raises:
            ArgumentValueError: The place names no lane of this scheduler.
        """
        self._check(place)
        job = future.job_of(self._dispatcher) if isinstance(future, Ticket) else None
        if job is None:
            return False
        with self._lock:
            return self._core.move(job, place)

    def _check(self, place: Place) -> None:
        if place.lane not in self._ranks:
            remedy = f"Lanes: {', '.join(self._settings.order)}."
            raise ArgumentValueError("lane", place.lane, "is no lane of this scheduler", remedy)

    def raise_ending(self) -> None:
        """Raise what a listener raised to end the run, once: for whoever waits long and submits nothing meanwhile.

        Raises:
            BaseException: That.
        """
        self._announcer.raise_ending()

    def pressed(self, retry_after: float | None) -> None:
        """Tell the limit that the service refused a call of a task in flight (see :func:`tell_pressure`).

        Args:
            retry_after: Seconds that the service asked for, where it did.
        """
        self._limit.rejected(retry_after)

    def look(self) -> None:
        """Look again whether a task may go: for a limit or a clock that has changed by itself."""
        self._dispatcher.send()

    def divide(self, parts: int) -> None:
        """Give each tenant an equal part of the slots at most, from now on.

        Args:
            parts: How many parts; 0 lets each tenant take what is free.
        """
        with self._lock:
            self._tenants.parts = max(0, parts)
        self._dispatcher.send()

    def withdraw(self, tenant: str) -> None:
        """Cancel what waits of one tenant. What runs goes on."""
        with self._lock:
            waiting = [job for job in self._core.waiting() if job.place.tenant == tenant]
        for job in waiting:
            job.ticket.cancel()

    def note(self, decision: Recorded) -> None:
        """Write a decision of the run's own into the record, where there is one."""
        if self._announcer.wanted:
            self._teller.note(decision)

    def tell(self) -> None:
        """Have every decision until now told before this returns."""
        self._teller.flush()

    def account(self) -> ScheduleAccount:
        """Return what has been done until now."""
        with self._lock:
            return self._core.account(self._clock() if self._ended_at is None else self._ended_at)

    def close(self) -> None:
        """Cancel what waits, wait for what runs, close the inner session. Idempotent.

        Raises:
            BaseException: What a hook raised to end the run, unless :meth:`submit` has.
        """
        with self._lock:
            self._core.closed = True
            waiting = self._core.waiting()
        for job in waiting:
            job.ticket.cancel()
        try:
            self._inner.close()
        finally:
            with self._lock:
                left = list(self._core.flying.values())
                self._ended_at = self._clock() if self._ended_at is None else self._ended_at
            # An interrupt may have come between taking a task and handing it on.
            for job in left:
                job.ticket.cancel()
                self._dispatcher.set_down(job)
            self._teller.close()
            self._announcer.close()
        self._announcer.raise_ending()

    def _make_way(self, lane: str, iteration: int) -> None:
        """Let less urgent tasks give way to one that has found no free slot."""
        dropped = self._settings.preempt == "drop"
        count = self._drop(lane) if dropped else self._recall(lane)
        if count and self._announcer.wanted:
            values = {"policy": self._settings.preempt, "for": lane, "tasks": count}
            self._teller.note(Decided("preemption", values, iteration))

    def _drop(self, lane: str) -> int:
        if self._ranks[lane] >= self._ranks.get(SPECULATIVE, -1):
            return 0
        with self._lock:
            jobs = self._core.waiting(optional=True)
            for job in jobs:
                job.dropped = True
        return sum(job.ticket.cancel() for job in jobs)

    def _recall(self, lane: str) -> int:
        with self._lock:
            jobs = to_recall(self._core.flying.values(), lane, self._ranks)
        for job in jobs:
            job.recalled = True
            if job.inner is not None and job.inner.cancel():
                return 1
            job.recalled = False
        return 0


def _queue(settings: Scheduling, replay: ScheduleRecord | str | PathLike[str] | None, tenants: Tenants) -> TaskQueue:
    def fresh() -> TaskQueue:
        return LaneQueues(settings.order, settings.shares, settings.window, tenants)

    if replay is None:
        return fresh()
    record = replay if isinstance(replay, ScheduleRecord) else ScheduleRecord.read(replay)
    return ReplayQueue(record.keys(), fresh)
