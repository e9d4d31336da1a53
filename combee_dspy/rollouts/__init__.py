"""Running programs: the executor contract and the executors, the rollout itself, and the evaluation cache."""

import importlib
from typing import Any

from combee_dspy.rollouts._asyncio import Asyncio, awaits
from combee_dspy.rollouts._base import CURRENT_SESSION, Executor, ExecutorSession, current_session
from combee_dspy.rollouts._pressure import LONGEST_WAIT, tell_pressure
from combee_dspy.rollouts._threads import Threads

__all__ = [
    "CURRENT_SESSION",
    "LONGEST_WAIT",
    "AdaptiveLimit",
    "Asyncio",
    "CacheStats",
    "ConcurrencyLimit",
    "EvaluationCache",
    "Executor",
    "ExecutorSession",
    "Fingerprints",
    "FixedLimit",
    "FlushRule",
    "InfrastructureFaultError",
    "Metric",
    "Patience",
    "Place",
    "RolloutKey",
    "ScheduleAccount",
    "ScheduleRecord",
    "Scheduler",
    "Scheduling",
    "Threads",
    "another_draw",
    "arun_rollout",
    "at_once",
    "atry_rollout",
    "awaits",
    "call_fingerprint",
    "current_place",
    "current_release",
    "current_session",
    "draw_again",
    "growth_allowed",
    "patient",
    "patient_program",
    "patient_rules",
    "placed",
    "program_fingerprint",
    "queue_at_least",
    "rarely_collected",
    "read_score",
    "repeats_itself",
    "run_rollout",
    "scorer_fingerprint",
    "setting_fingerprint",
    "tell_pressure",
    "try_rollout",
    "variance_below",
    "waited",
]

_HOMES = {
    "AdaptiveLimit": "_adaptive",
    "CacheStats": "_cache",
    "ConcurrencyLimit": "scheduling",
    "EvaluationCache": "_cache",
    "Fingerprints": "_fingerprint",
    "FixedLimit": "scheduling",
    "FlushRule": "scheduling",
    "Patience": "_patient",
    "Place": "scheduling",
    "RolloutKey": "_fingerprint",
    "ScheduleAccount": "scheduling",
    "ScheduleRecord": "scheduling",
    "Scheduler": "scheduling",
    "Scheduling": "scheduling",
    "another_draw": "_replicates",
    "at_once": "scheduling",
    "atry_rollout": "_retrying",
    "call_fingerprint": "_fingerprint",
    "current_place": "scheduling",
    "current_release": "scheduling",
    "draw_again": "_replicates",
    "growth_allowed": "_adaptive",
    "patient": "_patient",
    "patient_program": "_patient",
    "patient_rules": "_patient",
    "placed": "scheduling",
    "program_fingerprint": "_fingerprint",
    "queue_at_least": "scheduling",
    "rarely_collected": "_garbage",
    "repeats_itself": "_replicates",
    "scorer_fingerprint": "_fingerprint",
    "setting_fingerprint": "_fingerprint",
    "try_rollout": "_retrying",
    "variance_below": "scheduling",
    "waited": "scheduling",
}


def __getattr__(name: str) -> Any:
    # The rollout itself needs dspy's teleprompters; an executor's author does not.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"combee_dspy.rollouts.{_HOMES.get(name, '_run')}"), name)
