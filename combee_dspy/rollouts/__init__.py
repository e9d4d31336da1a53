"""Running programs: the executor contract and the executors."""

from combee_dspy.rollouts._base import Executor, ExecutorSession
from combee_dspy.rollouts._threads import Threads

__all__ = ["Executor", "ExecutorSession", "Threads"]
