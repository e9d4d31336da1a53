"""Where a run's rollouts and LM calls are carried out: the contract, threads of this process, and the loop itself."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

import dspy

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.records import Rollout
from combee_dspy.rollouts._batching import Batching
from combee_dspy.rollouts._jobs import Answer, CallJob, RolloutJob
from combee_dspy.rollouts._patient import lms_of
from combee_dspy.rollouts._run import arun_call, arun_rollout, run_call, run_rollout
from combee_dspy.strategies import Strategy, parameters

T = TypeVar("T")

_Task = tuple["asyncio.Future[Any]", contextvars.Context, Callable[[], Any]]


class ExecutorSession(ABC):
    """A running executor. Used on one event loop; owned by whoever started it, who closes it.

    An executor of other processes overrides :meth:`rollout` alone.
    """

    async def rollout(self, job: RolloutJob) -> Rollout:
        """Carry out one attempt at a rollout.

        Raises:
            InfrastructureFaultError: It failed for a reason outside the program.
        """
        return await self.run(partial(run_rollout, job))

    async def call(self, job: CallJob) -> Answer:
        """Carry out one attempt at an LM call; may raise the same."""
        return await self.run(partial(run_call, job))

    @abstractmethod
    async def run(self, work: Callable[[], T]) -> T:
        """Carry out any synchronous work in a worker thread, in a copy of the caller's context variables."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for what runs and let the workers go. Nothing is taken afterwards. May be called twice.

        Cancelled, it waits no longer: workers end with what they are at.
        """


class Executor(Strategy):
    """Starts the workers of a run.

    Attributes:
        elastic: Whether workers cost nothing before they are used. A run whose user names no number then asks for
            many, and finds out how many its service takes; of others it asks for as many as it begins with.
        batching: When and in what company its jobs go; ``None`` for as soon as there is a slot.
    """

    kind: ClassVar[str] = "executor"
    elastic: ClassVar[bool] = False
    batching: Batching | None = None

    def check_program(self, program: Any, metric: Any) -> None:
        """Refuse what this executor's workers could not carry out, before anything is spent.

        Called once a run, in the run's own DSPy context. By default anything will do.

        Raises:
            ArgumentTypeError: Program or metric cannot be taken to a worker; says why.
        """

    @abstractmethod
    def start(self, workers: int) -> ExecutorSession:
        """Start ``workers`` workers."""


class ThreadSession(ExecutorSession):
    """Worker threads that start when they are needed and wake the loop once for all that has ended meanwhile.

    ``concurrent.futures`` would make three objects and wake the loop for each task.
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
        while (task := self._tasks.get()) is not None:
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
        try:
            await asyncio.shield(self._closed)
        finally:  # where nobody waits for them any more, they end with what they are at
            for _ in self._threads:
                self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


class _LoopSession(ThreadSession):
    """Awaits rollouts and calls on the loop; any other work, metrics that are no coroutines too, runs in threads."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._helpers: ThreadPoolExecutor | None = None

    async def rollout(self, job: RolloutJob) -> Rollout:
        self._prepare()
        return await arun_rollout(job, self.run)

    async def call(self, job: CallJob) -> Answer:
        self._prepare()
        return await arun_call(job)

    def _prepare(self) -> None:
        if self._helpers is None:
            # DSPy prepares each awaited call in a thread of the loop's own executor, which has but a few.
            self._helpers = ThreadPoolExecutor(self._workers, thread_name_prefix="combee-loop")
            asyncio.get_running_loop().set_default_executor(self._helpers)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._helpers is not None:
                self._helpers.shutdown(wait=False)


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
        one = self.batching
        return {"batching": None if one is None else {**vars(one), "flush": str(one.flush)}}

    def check_program(self, program: Any, metric: Any) -> None:
        """Refuse a program that has an asynchronous form alone."""
        kind = type(program)
        if hasattr(kind, "aforward") and not hasattr(kind, "forward"):
            remedy = "Give executor='asyncio', or write `def forward(self, ...)`."
            raise ArgumentTypeError("student", kind.__name__, "has aforward only, which threads can't run", remedy)

    def start(self, workers: int) -> ExecutorSession:
        return ThreadSession(workers)


@parameters
class Asyncio(Threads):
    """The search's own event loop. Right for programs with ``aforward`` and services with many slots.

    A thread costs memory and switches, a coroutine next to none: hundreds of rollouts wait for a service at once.
    What a program computes itself runs one at a time, and holds up the search meanwhile.

    Args:
        batching: When and in what company jobs go; by default as soon as there is a slot.
    """

    name: ClassVar[str] = "asyncio"

    def check_program(self, program: Any, metric: Any) -> None:
        """Refuse a program that, or an LM of whose predictors, has no asynchronous form."""
        kind = type(program)
        if not isinstance(program, dspy.Module) or not inspect.iscoroutinefunction(getattr(kind, "aforward", None)):
            remedy = "Write `async def aforward(self, ...)`, which awaits `self.part.acall(...)`, or use 'threads'."
            raise ArgumentTypeError("student", kind.__name__, "has no aforward, so executor='asyncio' can't", remedy)
        for lm in lms_of(program):
            if type(lm).aforward is dspy.BaseLM.aforward:
                remedy = "Write `async def aforward(...)` for it, or use executor='threads'."
                raise ArgumentTypeError("lm", type(lm).__name__, "has no aforward, so executor='asyncio' can't", remedy)

    def start(self, workers: int) -> ExecutorSession:
        return _LoopSession(workers)
