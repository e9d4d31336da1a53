"""One event loop for a whole run: rollouts are awaited, everything else runs in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts._base import CURRENT_SESSION, Executor, ExecutorSession

__all__ = ["Asyncio", "awaits"]

T = TypeVar("T")


def awaits(session: ExecutorSession) -> bool:
    """Whether a session takes coroutine functions as tasks, and awaits them."""
    return getattr(session, "awaits", False) is True


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    context: contextvars.Context
    task: Callable[..., Any]
    args: tuple[Any, ...]


class _LoopSession:
    """See :class:`Asyncio`. Thread-safe.

    Attributes:
        awaits: Always true: coroutine functions are tasks too.
    """

    awaits = True

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._busy = 0
        self._closed = False
        self._flying: set[asyncio.Task[Any]] = set()
        self._ending = asyncio.Event()
        # A task holds one thread at most at a time, whether it is one or waits for one.
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="combee")
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(self._threads)
        self._thread = threading.Thread(target=self._run, name="combee-loop", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> int:
        return self._workers

    def submit(self, task: Callable[..., Any], /, *args: Any) -> Future[Any]:
        context = contextvars.copy_context()
        context.run(CURRENT_SESSION.set, self)
        job = _Job(Future(), context, task, args)
        with self._lock:
            if self._closed:
                raise RuntimeError("a session that is closed takes no tasks")
            self._waiting.append(job)
            if self._busy < self._workers:
                self._busy += 1
                self._begin_next()
        return job.future

    def close(self) -> None:
        with self._lock:
            first, self._closed = not self._closed, True
            waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            job.future.cancel()
            job.future.set_running_or_notify_cancel()
        if first:
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._threads.shutdown(wait=True)

    def _begin_next(self) -> None:
        """Give a free place to the next job that is not cancelled, or give it back. Called under the lock."""
        # Under the lock, because a loop that is closing takes nothing new.
        while self._waiting:
            job = self._waiting.popleft()
            if not job.future.set_running_or_notify_cancel():
                continue
            if inspect.iscoroutinefunction(job.task):
                # On the loop itself, where most places come free, nobody has to be woken for it.
                here = threading.current_thread() is self._thread
                (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._fly, job)
            else:
                self._threads.submit(self._work, job)
            return
        self._busy -= 1

    def _work(self, job: _Job) -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = job.context.run(job.task, *job.args), None
        except BaseException as error:  # noqa: BLE001 - a task's error belongs to whoever asks for its result
            outcome = None, error
        self._end(job, *outcome)

    def _fly(self, job: _Job) -> None:
        task = self._loop.create_task(_awaited(job), context=job.context)
        self._flying.add(task)
        task.add_done_callback(lambda done: self._landed(job, done))

    def _landed(self, job: _Job, task: asyncio.Task[Any]) -> None:
        self._flying.discard(task)
        self._end(job, *((None, CancelledError()) if task.cancelled() else task.result()))

    def _end(self, job: _Job, result: Any, error: BaseException | None) -> None:
        # The place first: whoever hears of the result may ask for more at once.
        with self._lock:
            self._begin_next()
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        await self._ending.wait()
        while self._flying:
            for task in self._flying:
                task.cancel()
            await asyncio.wait(self._flying)
        # Clients keep a loop's connections in its generators (see combee_dspy.lms.pooled).
        await self._loop.shutdown_asyncgens()


async def _awaited(job: _Job) -> tuple[Any, BaseException | None]:
    try:
        return await job.task(*job.args), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - a task's error belongs to whoever asks for its result
        return None, error


class Asyncio(Executor):
    """One event loop, in a thread of its own. Right for programs with ``aforward`` and services with many slots.

    A task that is a coroutine function is awaited on the loop; any other runs in
    a thread, as with ``threads``. Both together are never more than the workers.
    A thread costs memory and switches, a coroutine next to none: hundreds of
    rollouts wait for a service at once. What a program computes itself still
    runs one at a time. Closing cancels coroutines that are under way; tasks in
    threads are waited for.
    """

    name: ClassVar[str] = "asyncio"
    elastic: ClassVar[bool] = True

    def check_program(self, program: Any, metric: Any) -> None:
        """Refuse a program that cannot be awaited.

        Raises:
            ArgumentTypeError: It, or an LM of its predictors, has no asynchronous form.
        """
        import dspy

        from combee_dspy.rollouts._replicates import lms_of

        kind = type(program)
        if not isinstance(program, dspy.Module) or not inspect.iscoroutinefunction(getattr(kind, "aforward", None)):
            remedy = "Write `async def aforward(self, ...)`, which awaits `self.part.acall(...)`, or use 'threads'."
            raise ArgumentTypeError("student", kind.__name__, "has no aforward, so executor='asyncio' can't", remedy)
        for lm in lms_of(program):
            if type(lm).aforward is dspy.BaseLM.aforward:
                remedy = "Write `async def aforward(...)` for it, or use executor='threads'."
                raise ArgumentTypeError("lm", type(lm).__name__, "has no aforward, so executor='asyncio' can't", remedy)

    def start(self, workers: int) -> ExecutorSession:
        """Start a loop for ``workers`` tasks at once.

        Raises:
            ArgumentValueError: ``workers`` is below 1.
        """
        if workers < 1:
            raise ArgumentValueError("num_threads", workers, "is below 1", "Give at least one worker.")
        return _LoopSession(workers)
