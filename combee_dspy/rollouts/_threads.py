"""Threads of this process, for a whole run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

from combee_dspy.rollouts._base import Executor, ExecutorSession
from combee_dspy.rollouts._batching import Batching
from combee_dspy.strategies import parameters

T = TypeVar("T")

_Task = tuple["asyncio.Future[Any]", contextvars.Context, Callable[[], Any]]


class ThreadSession(ExecutorSession):
    """Worker threads that start when they are needed and wake the loop once for all that has ended meanwhile.

    ``concurrent.futures`` would make three objects and wake the loop for each task.

    Args:
        workers: Threads at most.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._ended: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._woken = False
        self._busy = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed: asyncio.Future[None] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Carry out work in a thread. Cancelling this lets the thread finish and drops its result."""
        if self._closed is not None:
            raise RuntimeError("a session that is closed takes no work")
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._busy += 1
        if self._busy > len(self._threads) < self._workers:
            # Daemons: an interpreter that exits must not wait for a service.
            thread = threading.Thread(target=self._work, name=f"combee-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        # DSPy keeps its settings, trace and callbacks in context variables.
        self._tasks.put((future, contextvars.copy_context(), work))
        return await future

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            future, context, work = task
            try:
                self._ended.append((future, context.run(work), None))
            except BaseException as error:  # noqa: BLE001 - a task's error belongs to whoever awaits it
                self._ended.append((future, None, error))
            # An idle thread must keep no program alive.
            del task, future, context, work
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)  # type: ignore[union-attr]  # set by the first task
                except RuntimeError:  # the loop is closed: nobody waits any more
                    return

    def _deliver(self) -> None:
        # The flag first: what ends from now on wakes the loop again.
        self._woken = False
        while self._ended:
            future, result, error = self._ended.popleft()
            self._busy -= 1
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                future.set_exception(error)
            else:  # what would end a loop, or look like a cancellation
                future.set_exception(RuntimeError(f"the work raised {error!r}"))
        if self._closed is not None and not self._busy and not self._closed.done():
            self._closed.set_result(None)

    async def close(self) -> None:
        """Wait for what runs and end the threads."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            if not self._busy:
                self._closed.set_result(None)
        await asyncio.shield(self._closed)
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


@parameters
class Threads(Executor):
    """Threads of this process. Right for LM calls, which wait far more than they compute.

    Args:
        batching: When and in what company jobs go; by default as soon as there is a slot.
    """

    name: ClassVar[str] = "threads"
    elastic: ClassVar[bool] = True

    batching: Batching | None = None

    def params(self) -> dict[str, Any]:
        """Return the constructor's parameters as JSON values."""
        return {"batching": None if self.batching is None else self.batching.plain()}

    def start(self, workers: int) -> ExecutorSession:
        """Return the session; its threads start when they are needed."""
        return ThreadSession(workers)
