"""Where a run's rollouts and LM calls are carried out: the contract, threads of this process, and
the loop itself.
"""

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
from combee_dspy.rollouts._batching import Batching
from combee_dspy.rollouts._call import arun_call, run_call
from combee_dspy.rollouts._in_time import call_in_time, run_in_time
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
_MOMENT = 0.2  # seconds in which a loop that nothing holds up answers


class ExecutorSession(ABC):
    """A running executor. Used on one event loop; owned by whoever started it, who closes it.

    An executor of other processes overrides :meth:`rollout` alone.
    """

    async def rollout(self, job: RolloutJob) -> Rollout:
        """Carry out one attempt at a rollout, within ``job.seconds``: where it takes longer, it has
        failed.

        Cancelled, it is given up at once: what it hangs in must not keep others from being carried
        out.

        Raises:
            InfrastructureFaultError: It failed for a reason outside the program.
        """
        return await run_in_time(job, lambda: self.run(partial(run_rollout, job)))

    async def call(self, job: CallJob) -> Answer:
        """Carry out one attempt at an LM call, within ``job.seconds`` as well; may raise the
        same.
        """
        return await call_in_time(job, lambda: self.run(partial(run_call, job)))

    @abstractmethod
    async def run(self, work: Callable[[], T]) -> T:
        """Carry out any synchronous work in a worker thread, in a copy of the caller's context
        variables.
        """

    @abstractmethod
    async def close(self) -> None:
        """Wait for what runs and let the workers go. Nothing is taken afterwards. May be called
        twice.

        What was cancelled is not waited for. Cancelled itself, it waits no longer: workers end with
        what they are at.
        """


class Executor(Strategy):
    """Starts the workers of a run.

    Attributes:
        elastic: Whether workers cost nothing before they are used. A run whose user names no number
            then asks for many, and finds out how many its service takes; of others it asks for as
            many as it begins with.
        batching: When and in what company its jobs go; ``None`` for as soon as there is a slot.
    """

    kind: ClassVar[str] = "executor"
    elastic: ClassVar[bool] = False
    batching: Batching | None = None

    def check_program(self, program: dspy.Module, metric: Metric) -> None:
        """Refuse what this executor's workers could not carry out, before anything is spent.

        Called once a run, in the run's own DSPy context. By default anything will do.

        Raises:
            ArgumentTypeError: Program or metric cannot be taken to a worker; says why.
        """

    @abstractmethod
    def start(self, workers: int) -> ExecutorSession:
        """Start ``workers`` workers."""


class ThreadSession(ExecutorSession):
    """Worker threads, which start when they are needed and wake the loop once for all that has
    ended meanwhile.
    """

    def __init__(self, workers: int) -> None:
        self._free = asyncio.Semaphore(workers)
        self._pool = DaemonPool()
        self._running: set[asyncio.Future[Any]] = set()
        self._ended: deque[_Ended] = deque()
        self._woken = self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Carry out work in a thread. Cancelling this leaves the thread to itself, and another
        takes its place.
        """
        async with self._free:
            if self._closed:
                raise RuntimeError("a session that is closed takes no work")
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._running.add(future)
            try:
                # DSPy keeps its settings, trace and callbacks in context variables.
                self._pool.begin(partial(self._carry_out, future, copy_context(), work))
                return await future
            finally:
                self._running.discard(future)

    def _carry_out(
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
        return partial(self._tell, (future, result, failure))

    def _tell(self, ended: _Ended) -> None:
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
        finally:  # where nobody waits for them any more, they end with what they are at
            self._pool.shutdown()


class _LoopSession(ThreadSession):
    """Awaits rollouts and calls on a loop of their own; metrics that are no coroutines, and any
    other work, in threads.

    A program that computes holds up the rollouts on that loop, and not the search. Where it does
    not return in time, the next rollouts get another loop.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._own: LoopThread | None = None
        self._held_up: list[LoopThread] = []

    async def rollout(self, job: RolloutJob) -> Rollout:
        # A task of its own, with nothing around it: a GeneratorExit of the program goes to the
        # outermost coroutine.
        own, work = self._started(), arun_rollout(job)
        rollout = await run_in_time(job, lambda: self._awaited(own, work))
        if is_late(rollout) and not await own.answers(_MOMENT):
            if self._own is own:
                self._own = None
                self._held_up.append(own)
            holds = asyncio.current_task(own.loop)
            if holds is None or holds.get_coro() is not work:
                reason = f"another rollout held up the event loop for {job.seconds:g} seconds"
                raise InfrastructureFaultError(
                    reason, retryable=True, usage=rollout.usage, rollout=rollout
                )
        return rollout

    async def call(self, job: CallJob) -> Answer:
        return await call_in_time(job, lambda: self._awaited(self._started(), arun_call(job)))

    def _started(self) -> LoopThread:
        if self._own is None:
            self._own = LoopThread()
        return self._own

    async def _awaited(self, own: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, own.loop))

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            loops = [*self._held_up, *([] if self._own is None else [self._own])]
            self._own, self._held_up = None, []
            await asyncio.gather(*(loop.close(_MOMENT) for loop in loops))


@parameters
class Threads(Executor):
    """Threads of this process. Right for LM calls, which wait far more than they compute.

    Args:
        batching: When and in what company jobs go; by default as soon as there is a slot.
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
    """An event loop beside the search's. Right for programs with ``aforward`` and services with
    many slots.

    A thread costs memory and switches, a coroutine next to none: hundreds of rollouts wait for a
    service at once. What a program computes itself runs one at a time, and holds up other rollouts
    meanwhile.

    Args:
        batching: When and in what company jobs go; by default as soon as there is a slot.
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
