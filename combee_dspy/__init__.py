"""Learn a DSPy program's prompts from many rollouts at once.

    from combee_dspy import Combee

    better = Combee(metric, auto="light", reflection_lm=lm).compile(program, trainset=train, valset=val)

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from combee_dspy.benchmarks import load_benchmark
    from combee_dspy.combee import Combee
    from combee_dspy.costs import Price
    from combee_dspy.engine.loading import candidates, load_candidate
    from combee_dspy.exceptions import CombeeError
    from combee_dspy.many import Task, TaskResult, compile_many
    from combee_dspy.reducer import CombeeProposer, CombeeReflection
    from combee_dspy.registry import Spec
    from combee_dspy.report import CombeeReport
    from combee_dspy.rollouts import EvaluationCache
    from combee_dspy.stopping import Budget

__version__ = "0.1.0"

_HOMES = {
    "Budget": "combee_dspy.stopping",
    "Combee": "combee_dspy.combee",
    "CombeeError": "combee_dspy.exceptions",
    "CombeeProposer": "combee_dspy.reducer",
    "CombeeReflection": "combee_dspy.reducer",
    "CombeeReport": "combee_dspy.report",
    "EvaluationCache": "combee_dspy.rollouts",
    "Price": "combee_dspy.costs",
    "Spec": "combee_dspy.registry",
    "Task": "combee_dspy.many",
    "TaskResult": "combee_dspy.many",
    "candidates": "combee_dspy.engine.loading",
    "compile_many": "combee_dspy.many",
    "load_benchmark": "combee_dspy.benchmarks",
    "load_candidate": "combee_dspy.engine.loading",
}

__all__ = [
    "Budget",
    "Combee",
    "CombeeError",
    "CombeeProposer",
    "CombeeReflection",
    "CombeeReport",
    "EvaluationCache",
    "Price",
    "Spec",
    "Task",
    "TaskResult",
    "candidates",
    "compile_many",
    "load_benchmark",
    "load_candidate",
]


def __getattr__(name: str) -> Any:
    # gepa's engine, scipy and the benchmarks are not worth anything to a script that only wants one of them.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
