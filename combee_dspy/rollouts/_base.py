"""The executor contract: where a run's rollouts and LM calls are carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

from combee_dspy.records import Rollout
from combee_dspy.rollouts._ask import run_call
from combee_dspy.rollouts._batching import Batching
from combee_dspy.rollouts._jobs import Answer, CallJob, RolloutJob
from combee_dspy.rollouts._run import run_rollout
from combee_dspy.strategies import Strategy

T = TypeVar("T")


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
        """Carry out one attempt at an LM call.

        Raises:
            InfrastructureFaultError: The service is to blame, or nobody can tell.
        """
        return await self.run(partial(run_call, job))

    @abstractmethod
    async def run(self, work: Callable[[], T]) -> T:
        """Carry out any synchronous work in a worker thread, in a copy of the caller's context variables."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for what runs and let the workers go. Nothing is taken afterwards. May be called twice."""


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
