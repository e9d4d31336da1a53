"""A task that waits or runs, and the future that its owner holds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Protocol

from combee_dspy.rollouts._base import CURRENT_SESSION
from combee_dspy.rollouts.scheduling._place import Place

__all__ = ["Job", "Owner", "Ticket"]


class Owner(Protocol):
    """What a ticket needs of its scheduler."""

    session: object
    """What the scheduler's tasks see as the current session."""

    def withdrawn(self, job: Job) -> None:
        """Hear that a job's owner has cancelled it. Called once."""
        ...

    def do_here(self, job: Job) -> bool:
        """Carry a job out in this thread, if it still waits; return whether that was done."""
        ...


class Job:
    """One task in the scheduler.

    Attributes:
        serial: Its number in the order of submission.
        place: Where it belongs.
        bucket: Its length class.
        rank: Its number in the order of submission within its lane; set by the queue.
        batch: Number of the flush that released it last.
        position: Its place in a replayed record; ``None`` where the record does not know it.
        since: When it began to wait, on the scheduler's clock.
        began: When a worker took it; ``None`` before.
        inner: Its future in the inner session while it is in flight.
        settled: Whether it has started once: its owner can no longer cancel it.
        gone: Whether it was cancelled, and all who wait for it know.
        recalled: Whether the scheduler asks the inner session to give it back.
        dropped: Whether the scheduler cancels it in favour of more urgent ones.
        again: How often it was queued again.
        task: What to do, ``args`` with what, ``context`` in which context; set where it can be carried out.
        ticket: Its owner's future.
    """

    __slots__ = (
        "again",
        "args",
        "batch",
        "began",
        "bucket",
        "context",
        "dropped",
        "gone",
        "inner",
        "place",
        "position",
        "rank",
        "recalled",
        "serial",
        "settled",
        "since",
        "task",
        "ticket",
    )

    task: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context
    ticket: Ticket

    def __init__(self, serial: int, place: Place) -> None:
        self.serial = serial
        self.place = place
        self.bucket = place.length_class
        self.since = 0.0
        self.rank = self.batch = 0
        self.position: int | None = None
        self.began: float | None = None
        self.inner: Future[Any] | None = None
        self.settled = self.gone = self.recalled = self.dropped = False
        self.again = 0

    def __repr__(self) -> str:
        return f"Job({self.serial}, {self.place.lane}, {self.place.key!r})"

    def settle(self) -> bool:
        """Return whether the task is to run: it is, unless its owner was faster. One thread at a time."""
        if not self.settled and not self.gone:
            self.settled = self.ticket.set_running_or_notify_cancel()
            self.gone = not self.settled
        return self.settled

    def forget(self) -> None:
        """Let go of the futures: a memo may hold the ticket as long as the run lasts."""
        self.inner = None
        self.ticket.release()


class Ticket(Future[Any]):
    """The future of a task.

    A worker of the same scheduler that asks for the result of a task that
    still waits carries it out itself: if all workers only waited for each
    other's tasks, none would be left to do them. A wait with a timeout ends
    anyway, and only waits.
    """

    def __init__(self, owner: Owner, job: Job) -> None:
        super().__init__()
        self._held: tuple[Owner, Job] | None = (owner, job)

    def release(self) -> None:
        """Forget the job."""
        self._held = None

    def job_of(self, owner: Owner) -> Job | None:
        """Return its job, if it is not done and belongs to this scheduler."""
        held = self._held
        return held[1] if held is not None and held[0] is owner else None

    def cancel(self) -> bool:
        """Cancel the task if it has not started, and take it out of the queue."""
        if not super().cancel():
            return False
        held, self._held = self._held, None
        if held is not None:
            held[0].withdrawn(held[1])
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Return the task's result, once it is there; see the class for who may have to work for it."""
        self._help(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the task's exception, once it is done; ``None`` where it has a result."""
        self._help(timeout)
        return super().exception(timeout)

    def _help(self, timeout: float | None) -> None:
        held = self._held
        if held is not None and timeout is None and CURRENT_SESSION.get() is held[0].session:
            held[0].do_here(held[1])
