"""The baseline contract: program, splits, budget, seed and LMs in; a curve and the best program out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ClassVar

from combee_dspy.baselines._records import BaselineResult, BaselineTask
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.strategies import Strategy

if TYPE_CHECKING:
    import dspy

    from combee_dspy.baselines._desk import Desk

__all__ = ["Baseline"]


class Baseline(Strategy):
    """A method that a speedup is divided by, or Combee itself, behind one interface.

    A subclass says how the method searches; :meth:`run` does the rest, the same
    for every method: it checks the task, opens ledger, events and tracker,
    counts each rollout, keeps the budget, and reads the held-out set once.

    Attributes:
        distributions: Whose versions are the method's version.
        reports_itself: Whether the method emits the events of its rollouts itself, through
            :meth:`Desk.relay <combee_dspy.baselines.Desk.relay>`, and keeps the budget itself.
    """

    kind: ClassVar[str] = "baseline"
    distributions: ClassVar[tuple[str, ...]] = ("dspy",)
    reports_itself: ClassVar[bool] = False

    @abstractmethod
    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        """Search with the task's budget.

        Runs with DSPy pointed at ``task.task_lm``; every LM call made here is in the
        ledger. ``desk.metric`` scores and counts: give it to an optimizer that
        runs programs itself. Beyond the budget the next rollout raises
        :class:`~combee_dspy.baselines.BudgetSpentError` through the optimizer; leave it alone.

        Args:
            task: What to work on.
            desk: The way to everything that is shared.

        Returns:
            The program that the method chooses; ``None`` for the best on validation.
        """

    def prepare(self) -> None:
        """Load what the method needs: imports are not a part of what is timed. By default nothing.

        Raises:
            ArgumentValueError: Something is not installed.
        """

    def versions(self) -> Mapping[str, str]:
        """Return distribution to version: which implementation of the method this is."""
        return {name: _version(name) for name in dict.fromkeys((*self.distributions, "combee-dspy"))}

    def run(self, task: BaselineTask) -> BaselineResult:
        """Run the method on a task.

        Args:
            task: What to work on.

        Raises:
            ArgumentTypeError: Task or parameters have a type that cannot be used.
            ArgumentValueError: Task or parameters have a value that cannot be used.
            SplitOverlapError: The held-out set shares rows with another split.
            LMUnreachableError: An LM did not answer the probe: nothing was spent.
            InfrastructureError: A service kept failing.
        """
        # The runner needs engine and tracking, which the author of a method does not.
        from combee_dspy.baselines._run import run_baseline

        given: Any = task
        if not isinstance(given, BaselineTask):
            raise ArgumentTypeError("task", given, "is no BaselineTask", "Give combee_dspy.baselines.BaselineTask(…).")
        return run_baseline(self, task)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
