"""The executor contract: where a run's rollouts and LM calls are carried out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, ClassVar, Protocol, TypeVar

from combee_dspy.strategies import Strategy

__all__ = ["CURRENT_SESSION", "Executor", "ExecutorSession", "current_session"]

T = TypeVar("T")

CURRENT_SESSION: ContextVar[object | None] = ContextVar("combee_session", default=None)
"""The session whose worker runs this code. A session sets it around each task."""


def current_session() -> object | None:
    """Return the session whose worker runs this code, or ``None`` outside of one.

    Whoever waits for tasks of that same session must not only wait: all its
    workers may be waiting.
    """
    return CURRENT_SESSION.get()


class ExecutorSession(Protocol):
    """A running executor. Thread-safe; owned by one run, which closes it."""

    @property
    def workers(self) -> int:
        """How many tasks run at once."""
        ...

    def submit(self, task: Callable[..., T], /, *args: Any) -> Future[T]:
        """Queue a task. It runs in a copy of the caller's context variables."""
        ...

    def close(self) -> None:
        """Cancel what has not started and wait for what has. May be called twice."""
        ...


class Executor(Strategy):
    """Starts one pool of workers for a whole run.

    A task may be a bound method of an object that no other process can have, so
    an executor of other processes carries out rollouts there and the rest
    here: where its session has a method ``run_rollout`` with the signature of
    :func:`combee_dspy.rollouts.run_rollout`, tasks call that one instead. Retries,
    cache and books stay in the task.

    A session with an event loop says so by a true attribute ``awaits``: it takes
    coroutine functions as tasks too, and their futures have what the coroutine
    returns. Closing it cancels coroutines that are under way.

    Attributes:
        elastic: Whether workers cost nothing before they are used. A run whose user names no number then asks for
            many, and finds out how many its service takes; of others it asks for as many as it begins with.
    """

    kind: ClassVar[str] = "executor"
    elastic: ClassVar[bool] = False

    def check_program(self, program: Any, metric: Any) -> None:
        """Refuse what this executor's workers could not carry out, before anything is spent.

        Called once a run, in the run's own DSPy context. By default anything will do.

        Args:
            program: The program to compile.
            metric: The metric.

        Raises:
            ArgumentTypeError: One of them cannot be taken to a worker; says why.
        """

    @abstractmethod
    def start(self, workers: int) -> ExecutorSession:
        """Start ``workers`` workers.

        Raises:
            ArgumentValueError: ``workers`` is below 1.
        """
