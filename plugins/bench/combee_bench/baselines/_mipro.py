"""MIPROv2: instructions and demonstrations proposed first, then searched together."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from combee_bench.baselines._base import Baseline, BaselineTask, Counting, Found
from combee_dspy.exceptions import MissingDistributionError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive

__all__ = ["Mipro"]

# MIPROv2's own figures: where minibatches begin to pay, and what they are.
_SMALL_VALIDATION = 50
_MINIBATCH = 35
_FULL_EVERY = 5
# Of its sets of demonstrations one is empty and one takes labels as they are; the others are
# bootstrapped.
_FREE_SETS = 2
_BOOTSTRAPPING = 4


@parameters
class Mipro(Baseline):
    """``dspy.MIPROv2`` with its defaults, within a budget in rollouts. Needs ``optuna``.

    It knows no budget: it is given as few training rows as keep bootstrapping within a quarter of
    the budget at worst, and as many trials as the rest pays for.

    Args:
        candidates: Instructions and sets of demonstrations to choose from; 6 is what DSPy's
            ``light`` uses.
        bootstrapped: Most bootstrapped demonstrations in a prompt; 0 with ``labelled=0`` learns
            instructions alone.
        labelled: Most demonstrations from labels.
    """

    name: ClassVar[str] = "mipro"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "optuna")
    candidates: Annotated[int, Field(ge=2)] = 6
    bootstrapped: Annotated[int, Field(ge=0)] = 4
    labelled: Annotated[int, Field(ge=0)] = 4

    def prepare(self) -> None:
        """Load optuna.

        Raises:
            MissingDistributionError: It is not installed.
        """
        if importlib.util.find_spec("optuna") is None:
            raise MissingDistributionError("the baseline mipro", "combee-bench[mipro]")
        importlib.import_module("optuna.samplers")

    def search(self, task: BaselineTask) -> Found:
        """Run ``dspy.MIPROv2``."""
        rows, most = (
            task.rows,
            task.budget // _BOOTSTRAPPING // max(1, self.candidates - _FREE_SETS),
        )
        train, validation = list(rows.train.examples), list(rows.validation.examples)
        note = ""
        if most < len(train):
            train = derive(task.seed, "mipro", "train").sample(train, max(1, most))
            note = (
                f"MIPROv2 was given {len(train)} of {len(rows.train)} training rows: its"
                " bootstrapping has no budget"
            )
        minibatch = len(validation) > _SMALL_VALIDATION
        size = min(_MINIBATCH, len(validation))
        each = size + len(validation) / _FULL_EVERY if minibatch else len(validation)
        left = task.budget - len(validation) - len(train) * max(1, self.candidates - _FREE_SETS)
        metric = Counting(rows.metric)
        optimizer = dspy.MIPROv2(
            metric,
            prompt_model=task.reflection_lm,
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
        program: Any = optimizer.compile(
            task.student.deepcopy(),
            trainset=train,
            valset=validation,
            num_trials=max(1, int(left / each)),
            minibatch=minibatch,
            minibatch_size=size,
            minibatch_full_eval_steps=_FULL_EVERY,
        )
        score = getattr(program, "score", None)
        return Found(program, metric.rollouts, None if score is None else float(score) / 100, note)
