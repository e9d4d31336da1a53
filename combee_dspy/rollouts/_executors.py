"""Where rollouts and LM calls run: the base class, threads of this process, and an event loop."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, ClassVar, TypeVar

import dspy

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.records import Metric, Rollout, described
from combee_dspy.rollouts._attempt import call_in_time, run_in_time
from combee_dspy.rollouts._batching import Batching
from combee_dspy.rollouts._call import arun_call, run_call
from combee_dspy.rollouts._jobs import (
    Answer,
    CallJob,
    InfrastructureFaultError,
    RolloutJob,
    is_late,
)
from combee_dspy.rollouts._patient import lms_of
from combee_dspy.rollouts._run import arun_rollout, run_rollout
from combee_dspy.rollouts._threads import DaemonPool, LoopThread
from combee_dspy.strategies import Strategy, parameters

T = TypeVar("T")

_Ended = tuple[asyncio.Future[Any], Any, BaseException | None]
"""An awaited future of a session, and its result or error."""
_MOMENT = 0.2  # seconds in which a loop answers that nothing blocks


class ExecutorSession(ABC):
    """A running executor. Used on one event loop; owned by whoever started it, who closes it.

    An executor of other processes overrides :meth:`rollout` alone.
    """

    async def rollout(self, job: RolloutJob) -> Rollout:
        """Run one attempt at a rollout for at most ``job.seconds``; a longer one has failed.

        Cancelled, it is given up at once: what it hangs in must not keep others from running.

        Raises:
            InfrastructureFaultError: It failed for a reason outside the program.
        """
        return await run_in_time(job, lambda: self.run(partial(run_rollout, job)))

    async def call(self, job: CallJob) -> Answer:
        """Run one attempt at an LM call, within ``job.seconds`` too; may raise the same."""
        return await call_in_time(job, lambda: self.run(partial(run_call, job)))

    @abstractmethod
    async def run(self, work: Callable[[], T]) -> T:
        """Run any synchronous work in a worker thread, in a copy of the caller's context
        variables.
        """

    @abstractmethod
    async def close(self) -> None:
        """Wait for what runs, cancelled work apart, and end the workers. May be called twice.

        No work is accepted afterwards. Cancelled itself, it waits no longer: workers end after
        their task.
        """


class Executor(Strategy):
    """Starts the workers of a run.

    Attributes:
        elastic: Whether unused workers cost nothing. A run without ``num_threads`` then starts
            many, and finds out how many its service takes; otherwise as many as it begins with.
        batching: When jobs go, and which go together; ``None`` for as soon as a slot is free.
    """

    kind: ClassVar[str] = "executor"
    elastic: ClassVar[bool] = False
    batching: Batching | None = None

    def check_program(self, program: dspy.Module, metric: Metric) -> None:
        """Refuse what the workers cannot run, before anything is spent. By default nothing.

        Called once a run, in the run's DSPy context.

        Raises:
            ArgumentTypeError: Program or metric cannot run on a worker; says why.
        """

    @abstractmethod
    def start(self, workers: int) -> ExecutorSession:
        """Start ``workers`` workers."""


class ThreadSession(ExecutorSession):
    """Worker threads, which start when they are needed.

    They wake the loop once for all that has ended meanwhile: waking it for each result took 1.46
    instead of 1.33 ms of CPU a rollout, with 64 workers at a service that answers at once.
    """

    def __init__(self, workers: int) -> None:
        self._free = asyncio.Semaphore(workers)
        self._pool = DaemonPool()
        self._running: set[asyncio.Future[Any]] = set()
        self._ended: deque[_Ended] = deque()
        self._woken = self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread. Where this is cancelled, the thread goes on, and another takes its
        place.
        """
        async with self._free:
            if self._closed:
                raise RuntimeError("this session is closed: start another")
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._running.add(future)
            try:
                # DSPy keeps its settings, trace and callbacks in context variables.
                self._pool.start(partial(self._run_in_thread, future, copy_context(), work))
                return await future
            finally:
                self._running.discard(future)

    def _run_in_thread(
        self, future: asyncio.Future[T], context: Context, work: Callable[[], T]
    ) -> Callable[[], None]:
        result, failure = None, None
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failure = error
            if not isinstance(error, Exception) or isinstance(error, StopIteration):
                # It would end the loop, or look like a cancellation.
                failure = RuntimeError(f"the work raised {described(error)}")
        return partial(self._wake_loop, (future, result, failure))

    def _wake_loop(self, ended: _Ended) -> None:
        self._ended.append(ended)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                ended[0].get_loop().call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # The flag first: what ends from now on wakes the loop again.
        self._woken = False
        while self._ended:
            future, result, failure = self._ended.popleft()
            if future.done():
                continue
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    async def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._closed = True
        try:
            if self._running:
                await asyncio.wait(self._running)
        finally:
            self._pool.shutdown()


class _LoopSession(ThreadSession):
    """A loop for rollouts and calls, and threads for metrics that are no coroutines.

    A program that computes blocks the rollouts on that loop, and not the search. Where it does not
    return in time, the next rollouts get another loop.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._loops: list[LoopThread] = []

    async def rollout(self, job: RolloutJob) -> Rollout:
        # A task of its own, with nothing around it: a GeneratorExit of the program goes to the
        # outermost coroutine.
        own, work = self._current(), arun_rollout(job)
        rollout = await run_in_time(job, lambda: _on(own, work))
        if is_late(rollout) and not await own.answers(_MOMENT):
            if self._loops[-1:] == [own]:
                self._loops.append(LoopThread())
            blocking = asyncio.current_task(own.loop)
            if blocking is None or blocking.get_coro() is not work:
                reason = f"another rollout blocked the event loop for {job.seconds:g} seconds"
                raise InfrastructureFaultError(
                    reason, retryable=True, usage=rollout.usage, rollout=rollout
                )
        return rollout

    async def call(self, job: CallJob) -> Answer:
        return await call_in_time(job, lambda: _on(self._current(), arun_call(job)))

    def _current(self) -> LoopThread:
        if not self._loops:
            self._loops.append(LoopThread())
        return self._loops[-1]

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            loops, self._loops = self._loops, []
            await asyncio.gather(*(loop.close(_MOMENT) for loop in loops))


async def _on(own: LoopThread, work: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, own.loop))


@parameters
class Threads(Executor):
    """Threads of this process: for LM calls, which wait far more than they compute.

    Args:
        batching: When jobs go, and which go together; by default as soon as a slot is free.
    """

    name: ClassVar[str] = "threads"
    elastic: ClassVar[bool] = True

    batching: Batching | None = None

    def params(self) -> dict[str, object]:
        return {"batching": None if self.batching is None else dict(vars(self.batching))}

    def check_program(self, program: dspy.Module, metric: Metric) -> None:
        """Refuse a program that has an asynchronous form alone."""
        kind = type(program)
        if hasattr(kind, "aforward") and not hasattr(kind, "forward"):
            remedy = "Give executor='asyncio', or write `def forward(self, ...)`."
            raise ArgumentTypeError(
                "student", kind.__name__, "has aforward only, which threads can't run", remedy
            )

    def start(self, workers: int) -> ExecutorSession:
        return ThreadSession(workers)


@parameters
class Asyncio(Threads):
    """An event loop beside the search's: for programs with ``aforward``, and services with many
    slots.

    A thread costs memory and switches, a coroutine next to none: hundreds of rollouts wait for a
    service at once. What a program computes itself blocks other rollouts meanwhile.

    Args:
        batching: When jobs go, and which go together; by default as soon as a slot is free.
    """

    name: ClassVar[str] = "asyncio"

    def check_program(self, program: dspy.Module, metric: Metric) -> None:
        """Refuse a program that, or an LM of whose predictors, has no asynchronous form."""
        kind = type(program)
        if not isinstance(program, dspy.Module) or not inspect.iscoroutinefunction(
            getattr(kind, "aforward", None)
        ):
            remedy = (
                "Write `async def aforward(self, ...)`, which awaits `self.part.acall(...)`, or use"
                " 'threads'."
            )
            raise ArgumentTypeError(
                "student", kind.__name__, "has no aforward, so executor='asyncio' can't", remedy
            )
        for lm in lms_of(program):
            if type(lm).aforward is dspy.BaseLM.aforward:
                remedy = "Write `async def aforward(...)` for it, or use executor='threads'."
                raise ArgumentTypeError(
                    "lm", type(lm).__name__, "has no aforward, so executor='asyncio' can't", remedy
                )

    def start(self, workers: int) -> ExecutorSession:
        return _LoopSession(workers)
