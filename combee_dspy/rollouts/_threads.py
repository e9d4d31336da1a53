"""One pool of threads for a whole run."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts._base import CURRENT_SESSION, Executor, ExecutorSession

__all__ = ["Threads"]

T = TypeVar("T")


class _ThreadSession:
    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="combee")

    @property
    def workers(self) -> int:
        return self._workers

    def submit(self, task: Callable[..., T], /, *args: Any) -> Future[T]:
        # DSPy keeps its settings, trace and callbacks in context variables: without
        # this copy a worker would see the defaults instead of the caller's.
        return self._pool.submit(contextvars.copy_context().run, self._work, task, args)

    def _work(self, task: Callable[..., T], args: tuple[Any, ...]) -> T:
        CURRENT_SESSION.set(self)
        return task(*args)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class Threads(Executor):
    """Threads of this process. Right for LM calls, which wait far more than they compute."""

    name: ClassVar[str] = "threads"
    elastic: ClassVar[bool] = True

    def start(self, workers: int) -> ExecutorSession:
        """Start ``workers`` threads.

        Raises:
            ArgumentValueError: ``workers`` is below 1.
        """
        if workers < 1:
            raise ArgumentValueError("num_threads", workers, "is below 1", "Give at least one worker.")
        return _ThreadSession(workers)
