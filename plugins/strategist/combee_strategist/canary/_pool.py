"""Threads for what no caller waits for: a bounded queue, a time-out, each job settled once."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Dropped", "Overdue", "Pool"]

logger = logging.getLogger("combee_dspy")

Settle = Callable[[Any, BaseException | None], None]


class Dropped(Exception):  # noqa: N818 - said of a job as its outcome
    """A job had not begun when its pool was closed."""


class Overdue(TimeoutError):  # noqa: N818 - said of a job as its outcome
    """A job was not done in its time; no error of the job's own."""


@dataclass(slots=True, eq=False)
class _Job:
    """One piece of work.

    ``overdue`` once it was settled by its time-out; ``replaced`` where a thread took over.
    """

    work: Callable[[], Any]
    settle: Settle
    deadline: float = 0.0
    overdue: bool = False
    replaced: bool = False


class Pool:
    """Daemon threads that carry out jobs. Thread-safe.

    Python cannot stop a thread: one whose job is overdue is given up, and another takes its place,
    until as many are given up as there are workers. Then the queue fills, and jobs are refused,
    until one comes back.

    Args:
        workers: Jobs at once.
        bound: Jobs that may wait; more are refused.
        timeout: Seconds after which a job that has begun is settled with a :class:`Overdue`.
    """

    def __init__(self, workers: int, bound: int, timeout: float) -> None:
        self._workers, self._bound, self._timeout = workers, bound, timeout
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Condition()  # notified where no job is open any more
        self._waiting = self._open = self._lost = self._threads = 0
        self._running: set[_Job] = set()
        self._closed = False
        threading.Thread(target=self._watch, name="combee-canary-watch", daemon=True).start()

    def submit(self, work: Callable[[], Any], settle: Settle) -> bool:
        """Have something done some time soon; ``False`` where the queue is full, the pool closed,
        or no thread to be had. Never waits.

        Args:
            work: What is to be done.
            settle: Is called once with what came of it: in the thread that did it; in another of
                the pool where it is overdue; in the thread that closes the pool where it had not
                begun.
        """
        with self._lock:
            if self._closed or self._waiting >= self._bound:
                return False
            few = self._threads - self._lost < self._workers
            if few and not self._start() and not self._threads:
                return False
            self._waiting += 1
            self._open += 1
            # Still under the lock: a job put after close() has emptied the queue would never be
            # settled.
            self._queue.put(_Job(work, settle))
        return True

    def _start(self) -> bool:
        """Begin one more thread if there may be one and the machine has it. Under the lock."""
        if self._closed or self._threads >= 2 * self._workers:
            return False
        try:
            threading.Thread(target=self._work, name="combee-canary", daemon=True).start()
        except RuntimeError as error:
            logger.warning("canary: %s", error)
            return False
        self._threads += 1
        return True

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                self._waiting -= 1
                job.deadline = time.monotonic() + self._timeout
                self._running.add(job)
            result, error = None, None
            try:
                result = job.work()
            except BaseException as raised:  # noqa: BLE001 - the thread goes on
                error = raised
            with self._lock:
                overdue, replaced = job.overdue, job.replaced
                self._running.discard(job)
                self._lost -= overdue
                self._threads -= replaced
            if not overdue:
                self._settle(job, result, error)
            if replaced:
                return

    def _watch(self) -> None:
        while True:  # after close() as well: a job may hang
            time.sleep(min(1.0, self._timeout / 8))
            now = time.monotonic()
            with self._lock:
                if self._closed and not self._open:
                    return
                late = [job for job in self._running if job.deadline < now and not job.overdue]
                for job in late:
                    job.overdue = True
                    self._lost += 1
                    job.replaced = self._start()
            for job in late:
                self._settle(job, None, Overdue(f"took longer than {self._timeout:g} s"))

    def _settle(self, job: _Job, result: Any, error: BaseException | None) -> None:
        try:
            job.settle(result, error)
        except Exception:  # a thread that ended here would be missed by every later job
            logger.exception("canary: what became of a job could not be kept")
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    self._lock.notify_all()

    def idle(self, seconds: float) -> bool:
        """Wait until every job is settled; ``False`` where that would take longer."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._open, seconds)

    def close(self) -> None:
        """Take no more jobs, settle those that wait with :class:`Dropped`, end idle threads."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(queue.Empty):
            while (job := self._queue.get_nowait()) is not None:
                self._settle(job, None, Dropped())
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)
