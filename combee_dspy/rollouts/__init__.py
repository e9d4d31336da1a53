"""Running programs: the executor contract and the executors, and the rollout itself."""

from typing import Any

from combee_dspy.rollouts._base import CURRENT_SESSION, Executor, ExecutorSession, current_session
from combee_dspy.rollouts._threads import Threads

__all__ = [
    "CURRENT_SESSION",
    "Executor",
    "ExecutorSession",
    "InfrastructureFaultError",
    "Metric",
    "Threads",
    "current_session",
    "read_score",
    "run_rollout",
]


def __getattr__(name: str) -> Any:
    # The rollout itself needs dspy's teleprompters; an executor's author does not.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from combee_dspy.rollouts import _run

    return getattr(_run, name)
