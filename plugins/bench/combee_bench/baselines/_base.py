"""The baseline contract: program, splits, budget, seed and LMs in; a program out."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import dspy

from combee_bench.surroundings import versions_of
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.costs import Costs
from combee_dspy.stopping import Limits
from combee_dspy.strategies import Strategy

__all__ = ["ALL_LIMITS", "Baseline", "BaselineTask", "Counting", "Found", "compiled"]

ALL_LIMITS = ("rollouts", "tokens", "dollars", "seconds")
"""What a comparison may be limited by."""


@dataclass(frozen=True, slots=True)
class BaselineTask:
    """What a method is asked to do. DSPy's settings name the task LM while it does.

    Attributes:
        student: The program to start from; not to be changed.
        rows: The benchmark: its metric, and training and validation rows. Held-out is not for
            methods.
        reflection_lm: Writes.
        budget: Rollouts that may be bought; 0 for no such limit.
        threads: Rollouts at once.
        seed: The seed.
        log_dir: Where a method that keeps a journal keeps it; ``None`` for nowhere.
        limits: All that the search may spend at most, rollouts among it.
        is_over: Whether tokens, dollars or seconds are spent by now.
        costs: Prices, for a method that counts dollars itself.
    """

    student: dspy.Module
    rows: LoadedBenchmark
    reflection_lm: dspy.LM
    budget: int
    threads: int
    seed: int
    log_dir: Path | None = None
    limits: Limits = field(default_factory=Limits)
    is_over: Callable[[], bool] = bool
    costs: Costs | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a method found.

    Attributes:
        program: The program that it chose.
        rollouts: Rollouts that it bought.
        validation: Mean validation score of the program; ``None`` where the method does not say.
        note: What it did otherwise than a reader would expect, as a sentence.
    """

    program: dspy.Module
    rollouts: int
    validation: float | None = None
    note: str = ""


class Baseline(Strategy):
    """A method that is compared.

    Attributes:
        distributions: Whose versions are the method's version.
        serial: Whether it is the serial baseline that improvements are set against: one reflection
            after the other.
        ends_by: Limits that end its search. The others are no reason for it to stop.
    """

    kind: ClassVar[str] = "baseline"
    distributions: ClassVar[tuple[str, ...]] = ("dspy",)
    serial: ClassVar[bool] = False
    ends_by: ClassVar[tuple[str, ...]] = ("rollouts",)

    @abstractmethod
    def search(self, task: BaselineTask) -> Found:
        """Search with the task's budget."""

    def prepare(self) -> None:
        """Load what the method needs: imports are no part of what is timed. By default nothing.

        Raises:
            MissingDistributionError: Something is not installed.
        """

    def versions(self) -> Mapping[str, str]:
        """Return distribution to version: which implementation of the method this is."""
        return versions_of(self.distributions)


def compiled(optimizer: Any, task: BaselineTask) -> Any:
    """Return what an optimizer makes of the task's student."""
    train, validation = list(task.rows.train.examples), list(task.rows.validation.examples)
    return optimizer.compile(task.student.deepcopy(), trainset=train, valset=validation)


class Counting:
    """A metric that answers DSPy's optimizers with a plain number and counts its calls."""

    def __init__(self, metric: Callable[..., Any]) -> None:
        self._metric = metric
        # next() of a counter is atomic, which adding is not.
        self._calls = itertools.count()
        self.rollouts = 0

    def __call__(self, gold: dspy.Example, pred: Any, trace: Any = None) -> float:
        self.rollouts = max(self.rollouts, next(self._calls) + 1)
        return float(self._metric(gold, pred, trace).score)
