"""Runs tasks in threads of their own, some at once, and keeps one's failure from the others."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import dspy

from combee_dspy.combee import Combee
from combee_dspy.exceptions import TaskCancelledError
from combee_dspy.many._records import Task, TaskResult
from combee_dspy.rollouts.scheduling import Seat
from combee_dspy.tracking import Redactor

__all__ = ["Crew", "Job"]

logger = logging.getLogger("combee_dspy")

_GLANCE = 1.0
"""Seconds between two looks of the main thread: a signal may have been delivered to another one."""


@dataclass(frozen=True, slots=True)
class Job:
    """One task with all that it takes.

    Attributes:
        task: The task.
        combee: Its optimizer, on its seat.
        seat: Its seat in the pool.
    """

    task: Task
    combee: Combee
    seat: Seat


class Crew:
    """Carries out jobs. Used by one thread.

    Each job runs in a thread of its own, in a copy of the caller's context variables: DSPy keeps
    its settings, callbacks and trace there.

    Args:
        jobs: The jobs; results are in their order.
        stops: Whether a job that fails ends the others.
    """

    def __init__(self, jobs: Sequence[Job], *, stops: bool) -> None:
        self._jobs = tuple(jobs)
        self._stops = stops
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._results: dict[int, TaskResult] = {}

    @property
    def results(self) -> tuple[TaskResult, ...]:
        """What became of each job; one that has not been run counts as cancelled."""
        return tuple(self._results.get(number) or self._cancelled(number) for number in range(len(self._jobs)))

    def run(self, numbers: Sequence[int], at_once: int) -> None:
        """Run some of the jobs, and return when all of them have ended.

        Args:
            numbers: Which ones, in the order in which they begin.
            at_once: How many at once at most.

        Raises:
            BaseException: An interrupt, or what a hook raised to end its run: every job is stopped, and has ended.
        """
        if not numbers or self._reason is not None:
            return
        workers = max(1, min(at_once, len(numbers)))
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="combee-task") as threads:
            futures = [threads.submit(contextvars.copy_context().run, self._one, number) for number in numbers]
            try:
                _wait(futures)
            except BaseException as error:
                self.stop(f"The job ended with {type(error).__name__}.")
                raise

    def stop(self, reason: str) -> None:
        """Begin no further job, and let those that run end as soon as what is in flight has."""
        with self._lock:
            self._reason = self._reason or reason
        for job in self._jobs:
            job.seat.cancel()

    def _one(self, number: int) -> None:
        job = self._jobs[number]
        task = job.task
        if self._reason is not None:
            self._results[number] = self._cancelled(number)
            return
        try:
            with dspy.context(**task.context):
                program = job.combee.compile(
                    task.student,
                    trainset=list(task.trainset),
                    valset=None if task.valset is None else list(task.valset),
                    heldout=None if task.heldout is None else list(task.heldout),
                )
        except Exception as error:  # noqa: BLE001 - it is this task's result, and no other task's
            self._failed(number, error)
        else:
            self._results[number] = TaskResult(task.name, program, None, program.combee_report)
            logger.info("Task %r is done.", task.name)

    def _failed(self, number: int, error: Exception) -> None:
        job = self._jobs[number]
        if job.seat.cancelled:
            self._results[number] = self._cancelled(number, error)
            return
        self._results[number] = TaskResult(job.task.name, None, error, None)
        told = Redactor().line(f"{type(error).__name__}: {error}", 300)
        logger.warning("Task %r failed: %s", job.task.name, told)
        if self._stops:
            self.stop(f"Task {job.task.name!r} failed, and on_error is 'stop'.")

    def _cancelled(self, number: int, error: Exception | None = None) -> TaskResult:
        name = self._jobs[number].task.name
        cancelled = TaskCancelledError(name, self._reason or "It was not begun.")
        cancelled.__cause__ = error
        return TaskResult(name, None, cancelled, None)


def _wait(futures: Sequence[Future[None]]) -> None:
    """Wait for all; raise what one of them raised as soon as it has."""
    waiting: set[Future[None]] = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=_GLANCE, return_when="FIRST_COMPLETED")
        for future in done:
            future.result()
