"""MIPROv2: instructions and demonstrations proposed first, then searched together."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import dspy

from combee_dspy.baselines._base import Baseline
from combee_dspy.baselines._desk import Desk
from combee_dspy.baselines._records import BaselineTask
from combee_dspy.bounds import check_whole
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

__all__ = ["MIPRO", "MIPROPlan", "plan_mipro"]

# MIPROv2's own figures: where minibatches begin to pay, and what they are.
_SMALL_VALIDATION = 50
_MINIBATCH = 35
_FULL_EVERY = 5
# Of its sets of demonstrations one is empty and one takes labels as they are; the others are bootstrapped.
_FREE_SETS = 2


@dataclass(frozen=True, slots=True)
class MIPROPlan:
    """How MIPROv2 is asked to spend a budget.

    Attributes:
        trials: Combinations to try.
        minibatch: Whether a trial takes a part of the validation set.
        minibatch_size: How many of its rows.
        train: Training rows, as many as bootstrapping may run without passing half of the budget.
    """

    trials: int
    minibatch: bool
    minibatch_size: int
    train: int


def plan_mipro(budget: int, train: int, validation: int, candidates: int) -> MIPROPlan:
    """Return a plan whose rollouts reach the budget, and whose bootstrapping leaves half of it to the search.

    Trials are as many as the budget pays for if bootstrapping cost nothing;
    what it does cost is taken from the last ones.

    Args:
        budget: Rollouts.
        train: Training rows.
        validation: Validation rows.
        candidates: Instructions, and sets of demonstrations.
    """
    # Each bootstrapped set may, at worst, run every training row.
    rows = max(1, min(train, budget // 2 // max(1, candidates - _FREE_SETS)))
    minibatch = validation > _SMALL_VALIDATION
    size = min(_MINIBATCH, validation) if minibatch else validation
    left = max(0, budget - validation)
    each = size + validation / _FULL_EVERY if minibatch else validation
    return MIPROPlan(max(1, -(-left // max(1, int(each)))), minibatch, size, rows)


class MIPRO(Baseline):
    """``dspy.MIPROv2`` with its defaults, within a budget in rollouts.

    Needs ``optuna``: ``pip install 'combee-dspy[mipro]'``.

    Args:
        candidates: Instructions and sets of demonstrations to choose from; 6 is what DSPy's ``light`` uses.
        bootstrapped: Most bootstrapped demonstrations in a prompt; 0 with ``labelled=0`` learns instructions alone.
        labelled: Most demonstrations from labels.
    """

    name: ClassVar[str] = "mipro"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "optuna")

    def __init__(self, candidates: int = 6, bootstrapped: int = 4, labelled: int = 4) -> None:
        self.candidates = candidates
        self.bootstrapped = bootstrapped
        self.labelled = labelled

    def validate(self) -> None:
        """Check the parameters.

        Raises:
            ArgumentTypeError: One is no whole number.
            ArgumentValueError: One is out of its range.
        """
        for name, least in (("candidates", 2), ("bootstrapped", 0), ("labelled", 0)):
            check_whole(name, getattr(self, name), least)

    def prepare(self) -> None:
        """Load optuna.

        Raises:
            ArgumentValueError: ``optuna`` is not installed.
        """
        if importlib.util.find_spec("optuna") is None:
            remedy = "Install it: pip install 'combee-dspy[mipro]'."
            raise ArgumentValueError("baseline", self.name, "needs optuna, which is not installed", remedy)
        importlib.import_module("optuna.samplers")

    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        """Run ``dspy.MIPROv2``."""
        plan = plan_mipro(task.budget, len(task.train), len(task.validation), self.candidates)
        train = list(task.train)
        if plan.train < len(train):
            train = derive(task.seed, "mipro", "train").sample(train, plan.train)
            desk.notes.append(f"MIPROv2 was given {plan.train} of {len(task.train)} training rows: {_WHY}")
        optimizer = dspy.MIPROv2(
            desk.number,
            prompt_model=task.reflection_lm,
            task_model=task.task_lm,
            auto=None,
            num_candidates=self.candidates,
            max_bootstrapped_demos=self.bootstrapped,
            max_labeled_demos=self.labelled,
            num_threads=task.threads,
            # A program that fails is scored, however often it does.
            max_errors=10 * task.budget,
            # Its own seed counts where this one is 0, so 0 is not given as it is.
            seed=task.seed + 1,
        )
        settings: dict[str, Any] = {"minibatch_size": plan.minibatch_size, "minibatch_full_eval_steps": _FULL_EVERY}
        with _quiet_optuna():
            program: dspy.Module = optimizer.compile(
                task.program.deepcopy(),
                trainset=train,
                valset=list(task.validation),
                num_trials=plan.trials,
                minibatch=plan.minibatch,
                **settings,
            )
        return program


_WHY = "more could spend over half of the budget on bootstrapping."


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep optuna's line per trial off the terminal."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
