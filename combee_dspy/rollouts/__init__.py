"""Running programs: the executor contract and the executors, the rollout itself, and the evaluation cache."""

import importlib
from typing import Any

from combee_dspy.rollouts._base import CURRENT_SESSION, Executor, ExecutorSession, current_session
from combee_dspy.rollouts._threads import Threads

__all__ = [
    "CURRENT_SESSION",
    "CacheStats",
    "EvaluationCache",
    "Executor",
    "ExecutorSession",
    "Fingerprints",
    "InfrastructureFaultError",
    "Metric",
    "RolloutKey",
    "Threads",
    "another_draw",
    "call_fingerprint",
    "current_session",
    "draw_again",
    "program_fingerprint",
    "read_score",
    "repeats_itself",
    "run_rollout",
    "scorer_fingerprint",
    "setting_fingerprint",
]

_HOMES = {
    "CacheStats": "_cache",
    "EvaluationCache": "_cache",
    "Fingerprints": "_fingerprint",
    "RolloutKey": "_fingerprint",
    "another_draw": "_replicates",
    "call_fingerprint": "_fingerprint",
    "draw_again": "_replicates",
    "program_fingerprint": "_fingerprint",
    "repeats_itself": "_replicates",
    "scorer_fingerprint": "_fingerprint",
    "setting_fingerprint": "_fingerprint",
}


def __getattr__(name: str) -> Any:
    # The rollout itself needs dspy's teleprompters; an executor's author does not.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"combee_dspy.rollouts.{_HOMES.get(name, '_run')}"), name)
