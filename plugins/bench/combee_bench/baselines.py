"""What a speedup is divided by: other optimizers, and Combee itself, behind one interface.

Any distribution may publish one, as an entry point of the group ``combee_dspy.baselines``.
"""

from __future__ import annotations

import importlib.util
import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from combee_bench.surroundings import versions_of
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.exceptions import MissingDistributionError, PluginError, UnknownStrategyError
from combee_dspy.stopping import Budget
from combee_dspy.strategies import Strategy, parameters
from combee_dspy.streams import derive

__all__ = [
    "Ace",
    "Baseline",
    "BaselineTask",
    "CombeeBaseline",
    "CombeePlaybook",
    "Found",
    "Gepa",
    "Mipro",
    "baseline_names",
    "build_baseline",
]

_GROUP = "combee_dspy.baselines"

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class BaselineTask:
    """What a method is asked to do. DSPy's settings name the task LM while it does.

    Attributes:
        student: The program to start from; not to be changed.
        rows: The benchmark: its metric, and training and validation rows. Held-out is not for methods.
        reflection_lm: Writes.
        budget: Rollouts that may be bought.
        threads: Rollouts at once.
        seed: The seed.
    """

    student: dspy.Module
    rows: LoadedBenchmark
    reflection_lm: dspy.LM
    budget: int
    threads: int
    seed: int


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
    """

    kind: ClassVar[str] = "baseline"
    distributions: ClassVar[tuple[str, ...]] = ("dspy",)

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


@parameters
class Gepa(Baseline):
    """``dspy.GEPA``: one reflection over a minibatch at a time.

    GEPA looks at its budget between iterations only and may pass it by one.

    Args:
        minibatch: Examples in a minibatch; GEPA's own default is 3.
        use_merge: Whether GEPA merges candidates.
    """

    name: ClassVar[str] = "gepa"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "gepa")
    minibatch: Count = 3
    use_merge: bool = True

    def search(self, task: BaselineTask) -> Found:
        """Run ``dspy.GEPA``."""
        optimizer = dspy.GEPA(
            task.rows.metric,
            max_metric_calls=task.budget,
            reflection_lm=task.reflection_lm,
            reflection_minibatch_size=self.minibatch,
            use_merge=self.use_merge,
            num_threads=task.threads,
            seed=task.seed,
            track_stats=True,
        )
        program: Any = _compiled(optimizer, task)
        results = program.detailed_results
        return Found(program, int(results.total_metric_calls), max(results.val_aggregate_scores))


def _compiled(optimizer: Any, task: BaselineTask) -> Any:
    train, validation = list(task.rows.train.examples), list(task.rows.validation.examples)
    return optimizer.compile(task.student.deepcopy(), trainset=train, valset=validation)


# MIPROv2's own figures: where minibatches begin to pay, and what they are.
_SMALL_VALIDATION = 50
_MINIBATCH = 35
_FULL_EVERY = 5
# Of its sets of demonstrations one is empty and one takes labels as they are; the others are bootstrapped.
_FREE_SETS = 2
_BOOTSTRAPPING = 4


@parameters
class Mipro(Baseline):
    """``dspy.MIPROv2`` with its defaults, within a budget in rollouts. Needs ``optuna``.

    It knows no budget: it is given as few training rows as keep bootstrapping within a quarter of the budget
    at worst, and as many trials as the rest pays for.

    Args:
        candidates: Instructions and sets of demonstrations to choose from; 6 is what DSPy's ``light`` uses.
        bootstrapped: Most bootstrapped demonstrations in a prompt; 0 with ``labelled=0`` learns instructions alone.
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
        rows, most = task.rows, task.budget // _BOOTSTRAPPING // max(1, self.candidates - _FREE_SETS)
        train, validation = list(rows.train.examples), list(rows.validation.examples)
        note = ""
        if most < len(train):
            train = derive(task.seed, "mipro", "train").sample(train, max(1, most))
            note = f"MIPROv2 was given {len(train)} of {len(rows.train)} training rows: its bootstrapping has no budget"
        minibatch = len(validation) > _SMALL_VALIDATION
        size = min(_MINIBATCH, len(validation))
        each = size + len(validation) / _FULL_EVERY if minibatch else len(validation)
        left = task.budget - len(validation) - len(train) * max(1, self.candidates - _FREE_SETS)
        metric = _Counting(rows.metric)
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


class _Counting:
    """A metric as DSPy's own optimizers reckon with it, a plain number, that counts how often it is asked."""

    def __init__(self, metric: Callable[..., Any]) -> None:
        self._metric = metric
        # next() of a counter is atomic, which adding is not.
        self._asked = itertools.count()
        self.rollouts = 0

    def __call__(self, gold: dspy.Example, pred: Any, trace: Any = None) -> float:
        self.rollouts = max(self.rollouts, next(self._asked) + 1)
        return float(self._metric(gold, pred, trace).score)


@parameters
class Ace(Baseline):
    """ACE's playbook learned offline, one example at a time (arXiv 2510.04618), until the budget is spent.

    Each example is run with the playbook so far, reflected on in one call and curated in
    another. It has no search: whenever as many examples were learned from as the validation set has rows, the
    playbook is validated, so that learning and validation share the budget evenly, and the best is returned.

    Args:
        rounds: How often the reflector looks at a trajectory.
        ground_truth: Whether the reflector sees the examples' labels.
        max_tokens: Estimated tokens that the program sees of the playbook.
    """

    name: ClassVar[str] = "ace"
    distributions: ClassVar[tuple[str, ...]] = ("combee-dspy", "dspy")
    rounds: Count = 1
    ground_truth: bool = True
    max_tokens: Annotated[int, Field(ge=64)] = 8_000

    def search(self, task: BaselineTask) -> Found:
        """Learn a playbook example by example."""
        from combee_dspy.aggregators import SingleCall
        from combee_dspy.artifacts import OnlinePlaybook, Playbook

        rows, every = task.rows, len(task.rows.validation)
        serving = OnlinePlaybook(
            task.student,
            rows.metric,
            reflection_lm=task.reflection_lm,
            artifact=Playbook(max_tokens=self.max_tokens, ground_truth=self.ground_truth, rounds=self.rounds),
            aggregator=SingleCall(),
            num_threads=task.threads,
            seed=task.seed,
        )
        best = Found(task.student, 0)
        order = derive(task.seed, "ace", "order")
        for bought in itertools.count(1):
            place = (bought - 1) % len(rows.train)
            if place == 0:
                examples = order.sample(list(rows.train.examples), len(rows.train))
            serving.predict([examples[place]])
            serving.learn()
            if bought % every == 0:
                program = serving.program()
                score = self._validated(program, task)
                if best.validation is None or score > best.validation:
                    best = Found(program, 0, score)
                if 2 * bought + 2 * every > task.budget:
                    return replace(best, rollouts=2 * bought)
        raise AssertionError  # the count does not end

    def _validated(self, program: dspy.Module, task: BaselineTask) -> float:
        evaluate = dspy.Evaluate(
            devset=list(task.rows.validation.examples), metric=_Counting(task.rows.metric), num_threads=task.threads
        )
        scores = [score for _, _, score in evaluate(program).results]
        return sum(scores) / len(scores)


@parameters
class CombeeBaseline(Baseline):
    """``Combee`` with the defaults of its constructor and a budget in rollouts."""

    name: ClassVar[str] = "combee"
    distributions: ClassVar[tuple[str, ...]] = ("combee-dspy", "dspy", "gepa")

    def search(self, task: BaselineTask) -> Found:
        """Run ``Combee``."""
        return _searched(task)


@parameters
class CombeePlaybook(Baseline):
    """``Combee`` with ``artifact="playbook"``, a parallel scan and defaults otherwise."""

    name: ClassVar[str] = "combee-playbook"
    distributions: ClassVar[tuple[str, ...]] = ("combee-dspy", "dspy")

    def search(self, task: BaselineTask) -> Found:
        """Run ``Combee`` over a playbook."""
        return _searched(task, artifact="playbook", aggregator="parallel-scan")


def _searched(task: BaselineTask, **chosen: Any) -> Found:
    from combee_dspy import Combee
    from combee_dspy.options import Validation

    optimizer = Combee(
        task.rows.metric,
        budget=Budget(rollouts=task.budget),
        reflection_lm=task.reflection_lm,
        num_threads=task.threads,
        seed=task.seed,
        validation=Validation(probe=False),
        **chosen,
    )
    program = _compiled(optimizer, task)
    report = program.combee_report
    return Found(program, report.rollouts, report.best_score)


def _points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=_GROUP)}


def baseline_names() -> tuple[str, ...]:
    """Return the names of all baselines that are installed, loading nothing but those of this distribution."""
    return tuple(sorted({*_OWN, *_points()}))


def build_baseline(name: str) -> Baseline:
    """Return a baseline by name, with its defaults.

    Raises:
        UnknownStrategyError: Nothing is published under this name.
        PluginError: It is published but cannot be loaded.
    """
    if name in _OWN:
        return _OWN[name]()
    point = _points().get(name)
    if point is None:
        raise UnknownStrategyError("baseline", name, baseline_names())
    distribution = point.dist.name if point.dist else "unknown"
    try:
        found = point.load()
    except Exception as error:
        raise PluginError("baseline", name, distribution, f"{type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Baseline)):
        raise PluginError("baseline", name, distribution, f"{point.value} is not a subclass of {Baseline.__name__}")
    made: Baseline = found()
    return made


_OWN: Mapping[str, type[Baseline]] = {one.name: one for one in (Ace, CombeeBaseline, CombeePlaybook, Gepa, Mipro)}
