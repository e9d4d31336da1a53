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
        self._lock = threading.Lock()
        self._waiting = self._open = self._lost = self._threads = 0
        self._running: set[_Job] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="combee-canary-watch", daemon=True).start()

    def submit(self, work: Callable[[], Any], settle: Settle) -> bool:
        """Have something done some time soon; ``False`` where the queue is full. Never waits.

        Args:
            work: What is to be done.
            settle: Is called once with what came of it, in a thread of the pool.
        """
        with self._lock:
            if self._closed.is_set() or self._waiting >= self._bound:
                return False
            self._waiting += 1
            self._open += 1
            begin = self._threads - self._lost < self._workers and self._threads < 2 * self._workers
            self._threads += begin
            # Still under the lock: a job put after close() has emptied the queue would never be
            # settled.
            self._queue.put(_Job(work, settle))
        if begin:
            self._start()
        return True

    def _start(self) -> None:
        threading.Thread(target=self._work, name="combee-canary", daemon=True).start()

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
        while not self._closed.wait(min(1.0, self._timeout / 8)):
            now = time.monotonic()
            with self._lock:
                late = [job for job in self._running if job.deadline < now and not job.overdue]
                for job in late:
                    job.overdue = True
                    job.replaced = self._threads < 2 * self._workers
                    self._lost += 1
                    self._threads += job.replaced
            for job in late:
                if job.replaced:
                    self._start()
                self._settle(job, None, Overdue(f"took longer than {self._timeout:g} s"))

    def _settle(self, job: _Job, result: Any, error: BaseException | None) -> None:
        try:
            job.settle(result, error)
        except Exception:  # a thread that ended here would be missed by every later job
            logger.exception("canary: what became of a job could not be kept")
        finally:
            with self._lock:
                self._open -= 1

    def idle(self, seconds: float) -> bool:
        """Wait until every job is settled; ``False`` where that would take longer."""
        end = time.monotonic() + seconds
        while self._open and time.monotonic() < end:
            time.sleep(0.005)
        return not self._open

    def close(self) -> None:
        """Take no more jobs, settle those that wait with :class:`Dropped`, end idle threads."""
        with self._lock:
            self._closed.set()
        with contextlib.suppress(queue.Empty):
            while (job := self._queue.get_nowait()) is not None:
                self._settle(job, None, Dropped())
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)
