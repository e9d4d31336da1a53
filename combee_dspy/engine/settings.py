"""What a run reads of its settings, and what follows from them before anything is bought."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import dspy

from combee_dspy.aggregators import Aggregator
from combee_dspy.checks import Splits
from combee_dspy.controllers import BatchController
from combee_dspy.diversity import Diversity
from combee_dspy.engine._private import AUTO_CANDIDATES, auto_budget
from combee_dspy.engine.candidates import Candidate, visible
from combee_dspy.evaluation import Calibration, CostCeiling, HeldoutTerms
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.records import Role
from combee_dspy.registry import Spec
from combee_dspy.rollouts import EvaluationCache, Executor
from combee_dspy.stopping import StoppingRule
from combee_dspy.tracking import Hook, Tracker

__all__ = ["Models", "Settings", "children_of", "minibatches_of", "rollout_limit", "specs_of", "uses_scan"]


class Settings(Protocol):
    """What a run reads of :class:`combee_dspy.Combee`."""

    metric_fn: Callable[..., Any]
    auto: str | None
    max_full_evals: int | None
    max_metric_calls: int | None
    reflection_minibatch_size: int | None
    candidate_selection_strategy: Any
    reflection_lm: Any
    skip_perfect_score: bool
    add_format_failure_as_feedback: bool
    custom_instruction_proposer: Callable[..., Any] | None
    custom_code_proposer: Callable[..., Any] | None
    component_selector: Any
    use_merge: bool
    max_merge_invocations: int | None
    num_threads: int | None
    failure_score: float
    perfect_score: float
    log_dir: str | None
    track_stats: bool
    use_wandb: bool
    wandb_api_key: str | None
    wandb_init_kwargs: dict[str, Any] | None
    track_best_outputs: bool
    warn_on_score_mismatch: bool
    seed: int
    gepa_kwargs: dict[str, Any]
    aggregator: Aggregator
    operators: tuple[Operator, ...]
    controller: BatchController
    executor: Executor
    budget: StoppingRule | None
    tracker: Tracker | None
    hooks: tuple[Hook, ...]
    prices: dict[str, Any]
    gpus: Mapping[Role, float]
    children: int | None
    diversity: Diversity
    guards: Guards
    anchors: tuple[dspy.Example, ...]
    fallback: str | None
    screen: int
    staleness: int
    speculation: float
    rescue: bool
    lesson_ledger: bool
    calibration: Calibration | None
    ceiling: CostCeiling | None
    heldout_terms: HeldoutTerms | None
    receipts: Any
    finalists: int
    memoize: bool
    cache: EvaluationCache | str | os.PathLike[str] | bool | None
    like_gepa: bool
    probe: bool
    progress: bool | None
    replay: str | os.PathLike[str] | None


class Models:
    """The LMs that a run is known to call, before it calls them.

    Args:
        student: The program. A predictor's own LM is taken before DSPy's setting.
        reflection_lm: The proposer's LM, if any.
    """

    def __init__(self, student: dspy.Module, reflection_lm: Any) -> None:
        # A program without predictors, all code, may use DSPy's setting.
        asked = [predictor.lm or dspy.settings.lm for predictor in student.predictors()] or [dspy.settings.lm]
        self.task: tuple[Any, ...] = tuple({id(lm): lm for lm in asked if lm is not None}.values())
        self.proposer: Any = reflection_lm

    def rounds(self) -> list[dict[Any, Any]]:
        """Return LM by role, in as many mappings as a role has LMs. Each LM stands in one of them."""
        first = {} if self.proposer is None else {"proposer": self.proposer}
        others = [{"task": lm} for lm in self.task if lm is not self.proposer]
        return [{**others[0], **first}, *others[1:]] if others else [first]

    def by_use(self) -> dict[str, str]:
        """Return the model's name by use, one entry per LM."""
        names = {f"task {number}" if number > 1 else "task": lm.model for number, lm in enumerate(self.task, start=1)}
        return names if self.proposer is None else {**names, "proposer": self.proposer.model}

    def by_role(self) -> dict[str, str]:
        """Return the models' names by role, for a reader."""
        task = ", ".join(dict.fromkeys(lm.model for lm in self.task)) or "set by the program"
        return {"task": task, "proposer": getattr(self.proposer, "model", task)}

    def simulated(self) -> tuple[str, ...]:
        """Return the names of those that no language model answers for."""
        parts = {model: model.lower().split("/") for model in self.by_use().values()}
        return tuple(model for model, names in parts.items() if any(name.startswith("simulated") for name in names))


def uses_scan(settings: Settings) -> bool:
    """Whether the reducer proposes, rather than a proposer of DSPy's or the user's."""
    return (
        not settings.like_gepa
        and settings.custom_instruction_proposer is None
        and "reflection_strategy" not in settings.gepa_kwargs
    )


def children_of(settings: Settings) -> int:
    """Return how many children each minibatch gets; 0 where the reducer does not make them."""
    if not uses_scan(settings):
        return 0
    return min(settings.children or len(settings.operators), len(settings.operators))


def rollout_limit(settings: Settings, seed: Candidate, splits: Splits) -> int | None:
    """Return the budget in rollouts, by GEPA's own arithmetic, cut to what the stopping rule allows."""
    own_valset = splits.validation is not splits.train
    if settings.auto is not None:
        # Demonstrations are components of ours: GEPA's presets know only what it edits itself.
        components = max(len(visible(seed)), 1)
        limit: int | None = auto_budget(components, AUTO_CANDIDATES[settings.auto], len(splits.validation))
    elif settings.max_full_evals is not None:
        limit = settings.max_full_evals * (len(splits.train) + (len(splits.validation) if own_valset else 0))
    else:
        limit = settings.max_metric_calls
    asked = settings.budget.rollout_limit() if settings.budget is not None else None
    return min((int(value) for value in (limit, asked) if value is not None), default=None)


def minibatches_of(strategy: object) -> int:
    """Return how many minibatches a sampling strategy of gepa's draws in one iteration; 1 where it does not say."""
    drawn = 1
    for name in ("p", "n"):
        value = getattr(strategy, name, 1)
        if isinstance(value, int) and value > 1:
            drawn *= value
    return drawn


def specs_of(settings: Settings) -> Mapping[str, Any]:
    """Return the strategies as plain data, and what else decides what a run buys."""
    specs: dict[str, Any] = {
        "aggregator": Spec.of(settings.aggregator).to_dict(),
        "operators": [Spec.of(operator).to_dict() for operator in settings.operators],
        "controller": Spec.of(settings.controller).to_dict(),
        "executor": Spec.of(settings.executor).to_dict(),
        "budget": None if settings.budget is None else Spec.of(settings.budget).to_dict(),
        "tracker": None if settings.tracker is None else Spec.of(settings.tracker).to_dict(),
        "memoize": settings.memoize,
        "search": {
            "children": settings.children,
            "diversity": settings.diversity.to_dict(),
            "guards": asdict(settings.guards),
            "anchors": len(settings.anchors),
            "fallback": settings.fallback,
            "screen": settings.screen,
            "staleness": settings.staleness,
            "speculation": settings.speculation,
            "rescue": settings.rescue,
            "lesson_ledger": settings.lesson_ledger,
            "finalists": settings.finalists,
        },
    }
    return specs if uses_scan(settings) else {"proposer": "dspy", **specs}
