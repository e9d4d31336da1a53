"""Rollouts and calls awaited on the search's own event loop."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import dspy

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.records import Rollout
from combee_dspy.rollouts._ask import arun_call
from combee_dspy.rollouts._base import ExecutorSession
from combee_dspy.rollouts._jobs import Answer, CallJob, RolloutJob
from combee_dspy.rollouts._patient import lms_of
from combee_dspy.rollouts._run import arun_rollout
from combee_dspy.rollouts._threads import Threads, ThreadSession
from combee_dspy.strategies import parameters


class LoopSession(ThreadSession):
    """Awaits rollouts and calls on the loop; any other work, metrics that are no coroutines too, runs in threads."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._helpers: ThreadPoolExecutor | None = None

    async def rollout(self, job: RolloutJob) -> Rollout:
        """Await one attempt at a rollout; cancelling this cancels its calls."""
        self._prepare()
        return await arun_rollout(job, self.run)

    async def call(self, job: CallJob) -> Answer:
        """Await one attempt at an LM call; cancelling this cancels it."""
        self._prepare()
        return await arun_call(job)

    def _prepare(self) -> None:
        if self._helpers is None:
            # DSPy prepares each awaited call in a thread of the loop's own executor, which has but a few.
            self._helpers = ThreadPoolExecutor(self._workers, thread_name_prefix="combee-loop")
            asyncio.get_running_loop().set_default_executor(self._helpers)

    async def close(self) -> None:
        """Wait for what runs in threads and end them."""
        await super().close()
        if self._helpers is not None:
            self._helpers.shutdown(wait=True)


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
        """Refuse a program that cannot be awaited.

        Raises:
            ArgumentTypeError: It, or an LM of its predictors, has no asynchronous form.
        """
        kind = type(program)
        if not isinstance(program, dspy.Module) or not inspect.iscoroutinefunction(getattr(kind, "aforward", None)):
            remedy = "Write `async def aforward(self, ...)`, which awaits `self.part.acall(...)`, or use 'threads'."
            raise ArgumentTypeError("student", kind.__name__, "has no aforward, so executor='asyncio' can't", remedy)
        for lm in lms_of(program):
            if type(lm).aforward is dspy.BaseLM.aforward:
                remedy = "Write `async def aforward(...)` for it, or use executor='threads'."
                raise ArgumentTypeError("lm", type(lm).__name__, "has no aforward, so executor='asyncio' can't", remedy)

    def start(self, workers: int) -> ExecutorSession:
        """Return the session; it uses the loop on which it is first asked."""
        return LoopSession(workers)
