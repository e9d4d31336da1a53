"""Combee, by the defaults of its constructor."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from combee_bench.baselines._base import ALL_LIMITS, Baseline, BaselineTask, Found, compiled
from combee_dspy import Budget, Combee, Validation
from combee_dspy.strategies import parameters

__all__ = ["CombeeBaseline", "CombeePlaybook"]


@parameters
class CombeeBaseline(Baseline):
    """``Combee`` with the defaults of its constructor and the comparison's budget."""

    name: ClassVar[str] = "combee"
    distributions: ClassVar[tuple[str, ...]] = ("combee-dspy", "dspy", "gepa")
    ends_by: ClassVar[tuple[str, ...]] = ALL_LIMITS

    def search(self, task: BaselineTask) -> Found:
        """Run ``Combee``."""
        return _searched(task)


@parameters
class CombeePlaybook(Baseline):
    """``Combee`` with ``artifact="playbook"`` and defaults otherwise."""

    name: ClassVar[str] = "combee-playbook"
    distributions: ClassVar[tuple[str, ...]] = ("combee-dspy", "dspy")
    ends_by: ClassVar[tuple[str, ...]] = ALL_LIMITS

    def search(self, task: BaselineTask) -> Found:
        """Run ``Combee`` over a playbook."""
        return _searched(task, artifact="playbook")


def _searched(task: BaselineTask, **chosen: Any) -> Found:
    optimizer = Combee(
        task.rows.metric,
        budget=Budget(**asdict(task.limits)),
        costs=task.costs,
        reflection_lm=task.reflection_lm,
        num_threads=task.threads,
        seed=task.seed,
        log_dir=task.log_dir,
        validation=Validation(probe=False),
        **chosen,
    )
    program = compiled(optimizer, task)
    report = program.combee_report
    return Found(program, report.rollouts, report.best_score)
