"""Learn a DSPy program's prompts from many rollouts at once.

::

    from combee_dspy import Combee

    combee = Combee(metric, auto="light", reflection_lm=lm)
    better = combee.compile(program, trainset=train, valset=val)

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from combee_dspy.benchmarks import load_benchmark
    from combee_dspy.combee import Combee
    from combee_dspy.costs import Costs, Price
    from combee_dspy.diversity import Diversity
    from combee_dspy.evaluation import Heldout
    from combee_dspy.exceptions import CombeeError
    from combee_dspy.guards import Guards
    from combee_dspy.learning import LearnedLessons, learn_lessons
    from combee_dspy.loading import candidates, load_candidate, load_skill
    from combee_dspy.many import Task, TaskResult, compile_many
    from combee_dspy.options import Privacy, Search, Validation
    from combee_dspy.reducer import CombeeProposer, CombeeReflection
    from combee_dspy.registry import Spec
    from combee_dspy.report import CombeeReport
    from combee_dspy.stopping import Budget

__version__ = "0.2.0"

_HOMES = {
    "benchmarks": ("load_benchmark",),
    "combee": ("Combee",),
    "costs": ("Costs", "Price"),
    "diversity": ("Diversity",),
    "evaluation": ("Heldout",),
    "exceptions": ("CombeeError",),
    "guards": ("Guards",),
    "learning": ("LearnedLessons", "learn_lessons"),
    "loading": ("candidates", "load_candidate", "load_skill"),
    "many": ("Task", "TaskResult", "compile_many"),
    "options": ("Privacy", "Search", "Validation"),
    "reducer": ("CombeeProposer", "CombeeReflection"),
    "registry": ("Spec",),
    "report": ("CombeeReport",),
    "stopping": ("Budget",),
}

__all__ = [
    "Budget",
    "Combee",
    "CombeeError",
    "CombeeProposer",
    "CombeeReflection",
    "CombeeReport",
    "Costs",
    "Diversity",
    "Guards",
    "Heldout",
    "LearnedLessons",
    "Price",
    "Privacy",
    "Search",
    "Spec",
    "Task",
    "TaskResult",
    "Validation",
    "candidates",
    "compile_many",
    "learn_lessons",
    "load_benchmark",
    "load_candidate",
    "load_skill",
]


def __getattr__(name: str) -> Any:
    # dspy, gepa and scipy are not worth anything to a script that only wants one of these.
    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
