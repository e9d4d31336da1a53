"""What a baseline is given, and what comes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from combee_dspy.checks import check_metric, check_positive, check_student
from combee_dspy.costs import Price
from combee_dspy.evaluation import Receipt
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts import EvaluationCache
from combee_dspy.tracking import Hook, Tracker

if TYPE_CHECKING:
    from combee_dspy.evaluation import PairedDifference

__all__ = ["BaselineResult", "BaselineTask", "CurvePoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineTask:
    """What every method is given, and nothing that is a method's own choice.

    Attributes:
        program: The program to improve; methods work on copies.
        metric: GEPA's five-argument metric.
        train: What is learned from.
        validation: What candidates are compared on; no row of ``train``.
        heldout: What is read once, before and after; empty for none.
        budget: Rollouts that the method may buy, validation included, held-out not.
        seed: Seed of everything random in the method.
        task_lm: Runs the program.
        reflection_lm: Writes prompts, reflections, lessons.
        threads: Rollouts and LM calls at once.
        adapter: DSPy's adapter; ``None`` leaves DSPy's setting.
        failure_score: Score of a rollout that failed.
        hooks: Hear every event. Closed at the end of the run.
        tracker: Where the run is recorded; ``None`` for nowhere.
        prices: Prices by model name, over the built-in list prices.
        journal: Folder for the run's journal; ``None`` leaves it to the tracker.
        clock: Monotonic seconds in which the run is timed. A simulated service has a clock of its own.
        name: The run's name; made from method and seed where empty.
        probe: Whether both LMs are asked for one token before anything is bought.
        cache: Where rollouts that have been paid for are kept, for runs one after the other to share: an
            :class:`~combee_dspy.rollouts.EvaluationCache` or the path of its file. One that is found there
            counts against the budget like any other, so that a method's course does not depend on it; its
            tokens and seconds are not spent again, which flatters whoever runs later: compare costs without.
        heldout_cache: The same for the readings of the held-out set alone, which are in nobody's price.
    """

    program: dspy.Module
    metric: Callable[..., Any]
    train: tuple[dspy.Example, ...]
    validation: tuple[dspy.Example, ...]
    task_lm: Any
    reflection_lm: Any
    budget: int
    heldout: tuple[dspy.Example, ...] = ()
    seed: int = 0
    threads: int = 8
    adapter: Any = None
    failure_score: float = 0.0
    hooks: tuple[Hook, ...] = ()
    tracker: Tracker | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    journal: Path | None = None
    clock: Callable[[], float] = time.monotonic
    name: str = ""
    probe: bool = True
    cache: EvaluationCache | str | os.PathLike[str] | None = None
    heldout_cache: EvaluationCache | None = None

    def validate(self) -> None:
        """Check what can be checked before anything is bought.

        Raises:
            ArgumentTypeError: A field has a type that cannot be used.
            ArgumentValueError: A field has a value that cannot be used.
        """
        check_student(self.program, False)
        check_metric(self.metric)
        check_positive("budget", self.budget, optional=False)
        check_positive("threads", self.threads, optional=False)
        for name in ("task_lm", "reflection_lm"):
            if not isinstance(getattr(self, name), dspy.BaseLM):
                raise ArgumentTypeError(name, getattr(self, name), "is no DSPy LM", "Give a dspy.LM.")
        if self.cache is not None and not isinstance(self.cache, (str, os.PathLike, EvaluationCache)):
            raise ArgumentTypeError("cache", self.cache, "is no cache", "Give EvaluationCache(…) or a path.")
        if not self.validation:
            remedy = "Give rows that are not in train: the curve is measured on them."
            raise ArgumentValueError("validation", self.validation, "is empty", remedy)
        if self.budget < len(self.validation):
            remedy = f"Give at least {len(self.validation)}, better ten times as many."
            raise ArgumentValueError("budget", self.budget, "does not pay for one validation", remedy)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The moment at which a candidate had been validated.

    Attributes:
        rollouts: Rollouts bought so far.
        tokens: Prompt and completion tokens so far, all roles.
        dollars: Dollars so far; ``None`` where the cost of a call is not known.
        seconds: Seconds of the task's clock since the search began.
        validation: The candidate's mean validation score.
        best: The best one so far.
        candidate_id: The candidate's content hash.
    """

    rollouts: int
    tokens: int
    dollars: float | None
    seconds: float
    validation: float
    best: float
    candidate_id: str


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """What a method needed, and what it found.

    Rollouts, tokens, dollars and seconds are those of the search: reading the
    held-out set is not among them.

    Attributes:
        method: The method's name.
        spec: Name and parameters (see :class:`combee_dspy.registry.Spec`), as plain data.
        versions: Distribution to version.
        seed: The run's seed.
        curve: One point per validated candidate, in order.
        program: The best program.
        validation: Its mean validation score; ``None`` where nothing was validated.
        rollouts: Rollouts bought, those among them that a cache had paid for.
        reused: How many of these cost nothing.
        tokens: Tokens, all roles.
        dollars: Dollars; ``None`` where the cost of a call is not known.
        seconds: Seconds of the task's clock.
        costs: The ledger's totals by role.
        reason: Why the search ended, in one sentence.
        receipt: The reading of the held-out set; ``None`` without one.
        state: The best program's ``dump_state()``.
        notes: What the method did otherwise than a reader would expect, in sentences.
        warnings: What makes the run unfit for claims, in sentences.
        simulated: Whether no language model answered.
    """

    method: str
    spec: Mapping[str, Any]
    versions: Mapping[str, str]
    seed: int
    curve: tuple[CurvePoint, ...]
    program: dspy.Module = field(compare=False, repr=False)
    validation: float | None
    rollouts: int
    tokens: int
    dollars: float | None
    seconds: float
    costs: Mapping[str, Any]
    reason: str
    receipt: Receipt | None = None
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    simulated: bool = False
    reused: int = 0

    @property
    def heldout(self) -> PairedDifference | None:
        """Held-out means before and after, with the interval of their difference."""
        return None if self.receipt is None else self.receipt.difference()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; the program stands in it as its state."""
        names = ("method", "seed", "validation", "rollouts", "reused", "tokens", "dollars", "seconds", "reason")
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        return {
            **plain,
            "simulated": self.simulated,
            "spec": dict(self.spec),
            "versions": dict(self.versions),
            "curve": [asdict(point) for point in self.curve],
            "costs": dict(self.costs),
            "receipt": None if self.receipt is None else self.receipt.to_dict(),
            "state": dict(self.state),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }
