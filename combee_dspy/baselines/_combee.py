"""Combee behind the interface of its baselines, so that it can stand beside them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import dspy

from combee_dspy.baselines._base import Baseline
from combee_dspy.baselines._desk import Desk
from combee_dspy.baselines._records import BaselineTask
from combee_dspy.combee import Combee as Teleprompter
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.stopping import Budget

__all__ = ["CombeeMethod", "CombeePlaybook", "compiled"]

_OURS = frozenset(
    ("metric", "budget", "reflection_lm", "num_threads", "seed", "hooks", "tracker", "progress", "probe", "prices")
) | {"cache"}


class CombeeMethod(Baseline):
    """``Combee`` with the defaults of its constructor, and what is given here.

    Args:
        arguments: Arguments of :class:`combee_dspy.Combee` by name, but for those that the task sets.
    """

    name: ClassVar[str] = "combee"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "gepa")
    reports_itself: ClassVar[bool] = True

    def __init__(self, arguments: Mapping[str, Any] | None = None) -> None:
        self.arguments = arguments

    def validate(self) -> None:
        """Check the parameters.

        Raises:
            ArgumentTypeError: ``arguments`` is no mapping, or names what the task sets.
        """
        given: object = self.arguments
        if given is not None and not isinstance(given, Mapping):
            raise ArgumentTypeError("arguments", given, "is no mapping", 'Give {"aggregator": "union"}.')
        taken = sorted(set(self.arguments or {}) & _OURS)
        if taken:
            raise ArgumentTypeError("arguments", taken, "are set by the task", "Leave them out.")

    def prepare(self) -> None:
        """Load what the batch controller fits with."""
        importlib.import_module("scipy.optimize")

    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        """Run ``Combee``."""
        return compiled(task, desk, task.budget, **dict(self.arguments or {}))


class CombeePlaybook(CombeeMethod):
    """``Combee(artifact="playbook")``: Combee on ACE, beside ACE itself.

    Args:
        arguments: As for :class:`CombeeMethod`; ``artifact`` may name another playbook.
    """

    name: ClassVar[str] = "combee-playbook"

    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        """Run ``Combee`` on a playbook."""
        return compiled(task, desk, task.budget, **{"artifact": "playbook", **dict(self.arguments or {})})


def compiled(task: BaselineTask, desk: Desk, budget: int, **arguments: Any) -> dspy.Module:
    """Compile a task's program with ``Combee``, heard by a desk.

    Args:
        task: The task.
        desk: Hears the run's events.
        budget: Rollouts at which it stops.
        **arguments: Further arguments of :class:`combee_dspy.Combee`.
    """
    if desk.cache is not None:
        arguments = {**arguments, "cache": desk.cache, "memoize": True}
    optimizer = Teleprompter(
        task.metric,
        budget=Budget(rollouts=budget),
        reflection_lm=task.reflection_lm,
        num_threads=task.threads,
        failure_score=task.failure_score,
        seed=task.seed,
        hooks=[desk.relay()],
        prices=dict(task.prices),
        probe=False,
        progress=False,
        **arguments,
    )
    program: dspy.Module = optimizer.compile(
        task.program.deepcopy(), trainset=list(task.train), valset=list(task.validation)
    )
    report = program.combee_report
    desk.books.rollouts = report.rollouts
    desk.reason = report.reason
    return program
