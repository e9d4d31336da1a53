"""One scheduler for several runs: each gets a seat, closed by its run; the pool outlives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from os import PathLike
from typing import Any, ClassVar, TypeVar

from combee_dspy.events import Event
from combee_dspy.exceptions import TaskCancelledError
from combee_dspy.rollouts._base import Executor, ExecutorSession
from combee_dspy.rollouts.scheduling._account import ScheduleAccount
from combee_dspy.rollouts.scheduling._announce import Announcer
from combee_dspy.rollouts.scheduling._place import Place, current_place, placed
from combee_dspy.rollouts.scheduling._record import Recorded
from combee_dspy.rollouts.scheduling._scheduler import Scheduler

__all__ = ["Seat", "SeatSession", "SharedPool"]

T = TypeVar("T")


class SharedPool:
    """A scheduler that several runs share, and with it one limit, one order of lanes, one set of workers.

    Thread-safe. Owns the scheduler.

    Args:
        executor: What the workers are; seats stand for it.
        open_scheduler: Makes the scheduler, over a session of ``executor``; given who says whether the limit may
            rise, and who hears its decisions.

    Attributes:
        scheduler: The scheduler.
    """

    def __init__(
        self,
        executor: Executor,
        open_scheduler: Callable[[Callable[[], bool], Callable[[Event], None]], Scheduler],
    ) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._listening: list[SeatSession] = []
        self._seats: dict[str, Seat] = {}
        self.scheduler = open_scheduler(self._may_grow, self._tell)

    def seat(self, tenant: str) -> Seat:
        """Return the executor of one run.

        Args:
            tenant: The run's name, unique in the pool.
        """
        seat = Seat(self, self._executor, tenant)
        with self._lock:
            self._seats[tenant] = seat
        return seat

    def cancel(self) -> None:
        """Cancel all that waits; no seat takes a further task."""
        with self._lock:
            seats = list(self._seats.values())
        for seat in seats:
            seat.cancel()

    def close(self) -> None:
        """Close the scheduler. Idempotent."""
        self.scheduler.close()

    def listen(self, session: SeatSession, hears: bool) -> None:
        """Let a seat's run hear the scheduler's decisions, or no longer. For seats."""
        with self._lock:
            self._listening = [other for other in self._listening if other is not session]
            if hears:
                self._listening.append(session)

    def _may_grow(self) -> bool:
        """Whether one of the runs has use for more tasks at once."""
        with self._lock:
            listening = list(self._listening)
        return not listening or any(session.growth() for session in listening)

    def _tell(self, event: Event) -> None:
        with self._lock:
            listening = list(self._listening)
        for session in listening:
            session.hear(event)


class Seat(Executor):
    """Stands for a pool's executor in one run, which records it as if it had that one for itself.

    Args:
        pool: The pool.
        executor: The pool's executor.
        tenant: The run's name.

    Attributes:
        session: What the run has started; ``None`` before.
        cancelled: Whether it takes no further task.
    """

    name: ClassVar[str] = "seat"

    def __init__(self, pool: SharedPool, executor: Executor, tenant: str) -> None:
        self._pool = pool
        self._executor = executor
        self.tenant = tenant
        self.session: SeatSession | None = None
        self.cancelled = False
        # What is recorded of the run is what it would be with the executor alone.
        self.__dict__["name"] = executor.name

    def params(self) -> dict[str, Any]:
        """Return the executor's."""
        return self._executor.params()

    def check_program(self, program: Any, metric: Any) -> None:
        """Ask the executor."""
        self._executor.check_program(program, metric)

    def start(self, workers: int) -> ExecutorSession:
        """Return the run's session. The pool's workers are what they are.

        Raises:
            TaskCancelledError: The run was cancelled before.
        """
        return self._started()

    def _started(self) -> SeatSession:
        if self.cancelled:
            raise TaskCancelledError(self.tenant)
        self.session = SeatSession(self._pool, self)
        return self.session

    def joined(
        self,
        emit: Callable[[Event], None],
        growth: Callable[[], bool],
        record: str | PathLike[str] | None = None,
    ) -> SeatSession:
        """Start, as a run does that knows of the pool.

        Args:
            emit: Hears the pool's decisions, which concern all its runs.
            growth: Whether the run has use for more tasks at once.
            record: The file for the run's own decisions. The order of dispatch is the pool's, and not in it.

        Raises:
            TaskCancelledError: The run was cancelled before.
            OSError: The file cannot be opened.
        """
        session = self._started()
        session.listen(emit, growth, record)
        return session

    def cancel(self) -> None:
        """Cancel what waits and take no further task; what runs goes on. Idempotent."""
        self.cancelled = True
        self._pool.scheduler.withdraw(self.tenant)


class SeatSession:
    """One run's view of a pool. Thread-safe; closed by the run.

    Attributes:
        growth: Whether the run has use for more tasks at once.
        began: When the first task was submitted, monotonic seconds; ``None`` before.
        ended: When the last task that is done was done.
    """

    awaits: bool
    run_rollout: Callable[..., Any]

    def __init__(self, pool: SharedPool, seat: Seat) -> None:
        self._pool = pool
        self._scheduler = pool.scheduler
        self._seat = seat
        self._changed = threading.Condition()
        self._open = 0
        self._closed = False
        self._emit: Callable[[Event], None] | None = None
        self._record: Announcer | None = None
        self.growth: Callable[[], bool] = lambda: True
        self._ending: BaseException | None = None
        self.began: float | None = None
        self.ended: float | None = None
        self.awaits = self._scheduler.awaits
        there = getattr(self._scheduler, "run_rollout", None)
        if there is not None:
            # Only where the inner session has one: that is how others know of it.
            self.run_rollout = there

    @property
    def workers(self) -> int:
        """How many tasks the pool runs at once: as many as the run would have alone."""
        return self._scheduler.workers

    @property
    def slots(self) -> int:
        """How many tasks may be in flight in the pool now."""
        return self._scheduler.slots

    @property
    def inner(self) -> ExecutorSession:
        """The session that carries tasks out. Not to be closed, nor to be given tasks."""
        return self._scheduler.inner

    def listen(
        self,
        emit: Callable[[Event], None],
        growth: Callable[[], bool] | None = None,
        record: str | PathLike[str] | None = None,
    ) -> None:
        """Let the run hear the scheduler's decisions; see :meth:`Seat.joined`."""
        self._record = None if record is None else Announcer(None, record)
        self.growth = self.growth if growth is None else growth
        self._emit = emit
        self._pool.listen(self, hears=True)

    def hear(self, event: Event) -> None:
        """Pass a decision on. For the pool."""
        try:
            if self._emit is not None:
                self._emit(event)
        except BaseException as ending:  # noqa: BLE001 - a hook may end its own run, and no other run of the pool
            self._ending = self._ending or ending

    def submit(self, task: Callable[..., T], /, *args: Any) -> Future[T]:
        """Queue a task at the current place, as this run's.

        Raises:
            TaskCancelledError: The run was cancelled.
            RuntimeError: The session is closed.
            BaseException: What a hook raised to end the run, once.
        """
        if self._seat.cancelled:
            raise TaskCancelledError(self._seat.tenant)
        self.raise_ending()
        with self._changed:
            if self._closed:
                raise RuntimeError("the session is closed")
            self._open += 1
            if self.began is None:
                self.began = time.monotonic()
        try:
            with placed(self._mine(current_place())):
                future = self._scheduler.submit(task, *args)
        except BaseException:
            self._done(None)
            raise
        future.add_done_callback(self._done)
        # A cancellation may have come after the question above, and taken what waited before this did.
        return self._unless_cancelled(future)

    def _unless_cancelled(self, future: Future[T]) -> Future[T]:
        if self._seat.cancelled:
            future.cancel()
        return future

    def raise_ending(self) -> None:
        """Raise what a hook raised to end the run, once: for whoever waits long and submits nothing meanwhile.

        Raises:
            BaseException: That.
        """
        ending, self._ending = self._ending, None
        if ending is not None:
            raise ending

    def _mine(self, place: Place) -> Place:
        tenant = self._seat.tenant
        if place.tenant == tenant:
            return place
        return replace(place, tenant=tenant, key=f"{tenant}/{place.key}" if place.key else "")

    def _done(self, future: Future[Any] | None) -> None:
        with self._changed:
            self._open -= 1
            self.ended = time.monotonic()
            self._changed.notify_all()

    def move(self, future: Future[Any], place: Place) -> bool:
        """Give a task that still waits another place (see :meth:`Scheduler.move`)."""
        return self._scheduler.move(future, place)

    def pressed(self, retry_after: float | None) -> None:
        """Tell the pool's limit that the service refused a call."""
        self._scheduler.pressed(retry_after)

    def look(self) -> None:
        """Look again whether a task may go."""
        self._scheduler.look()

    def note(self, decision: Recorded) -> None:
        """Write a decision of the run's own into its record, where there is one."""
        with self._changed:
            if self._record is not None:
                self._record.tell([decision])

    def tell(self) -> None:
        """Have every decision until now told before this returns."""
        self._scheduler.tell()

    def account(self) -> ScheduleAccount:
        """Return what the pool has done until now, for all its runs."""
        return self._scheduler.account()

    def close(self) -> None:
        """Cancel what waits of this run and wait for what runs. The pool stays. Idempotent.

        Raises:
            BaseException: What a hook raised to end the run, unless :meth:`submit` has.
        """
        with self._changed:
            self._closed = True
        self._scheduler.withdraw(self._seat.tenant)
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)
            if self._record is not None:
                self._record.close()
        self._pool.listen(self, hears=False)
        self.raise_ending()
