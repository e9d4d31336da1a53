"""What a run is asked to do: the arguments of ``Combee``, checked, typed and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypeAlias

import dspy
from gepa.core.adapter import ProposalFn
from gepa.core.callbacks import GEPACallback
from gepa.proposer.reflective_mutation.base import CandidateSelector, ReflectionComponentSelector
from gepa.utils.stop_condition import StopperProtocol

from combee_dspy._private import GEPA_MINIBATCH
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts import Artifact, Instruction
from combee_dspy.controllers import BatchController, PowerLaw, Static
from combee_dspy.costs import Costs
from combee_dspy.diversity import Diversity
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.options import Privacy, Search, Validation
from combee_dspy.records import Metric
from combee_dspy.rollouts import Executor
from combee_dspy.stopping import StoppingRule
from combee_dspy.tracking import Tracker

__all__ = ["Auto", "FrontierType", "GepaOptions", "Keep", "Settings"]

Auto: TypeAlias = Literal["light", "medium", "heavy"]
FrontierType: TypeAlias = Literal["instance", "objective", "hybrid", "cartesian"]
Keep: TypeAlias = Literal["pareto", "trunk"]

# The smallest number of updates an epoch, by how what was learned is kept.
_UPDATES: Mapping[Keep, int] = {"trunk": 3, "pareto": 4}
_OVERLAPPING: Mapping[Keep, int] = {"trunk": 2, "pareto": 1}


@dataclass(frozen=True, slots=True)
class GepaOptions:
    """What ``gepa_kwargs`` may ask for, named as in ``gepa.optimize``."""

    callbacks: tuple[GEPACallback, ...] = ()
    frontier_type: FrontierType = "instance"
    stop_callbacks: tuple[StopperProtocol, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Settings:
    """The arguments of :class:`~combee_dspy.Combee`, which explains them; strategies are resolved.

    Frozen, and shared by every thread of a run. ``dataclasses.replace`` makes changed ones::

        combee.settings = dataclasses.replace(combee.settings, seed=1)

    Attributes:
        search: As the user gave it; :attr:`staleness` follows from it.
        keep: How a run keeps what it learns. Code of a ``dspy.Flex`` gets GEPA's search where
            ``search.keep`` is ``None``, whatever stands here.
        chosen_controller: As the user gave it; :attr:`controller` follows from it.
        trackers: ``None`` for progress as the terminal can show it.
    """

    metric: Metric
    auto: Auto | None
    max_full_evals: int | None
    max_metric_calls: int | None
    reflection_minibatch_size: int | None
    candidate_selection_strategy: str | CandidateSelector
    reflection_lm: dspy.BaseLM | None
    skip_perfect_score: bool
    add_format_failure_as_feedback: bool
    instruction_proposer: ProposalFn | None
    code_proposer: ProposalFn | None
    component_selector: str | ReflectionComponentSelector
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
    use_mlflow: bool
    seed: int
    gepa: GepaOptions
    artifact: Artifact
    aggregator: Aggregator
    operators: tuple[Operator, ...]
    chosen_controller: BatchController | None
    executor: Executor
    search: Search
    keep: Keep
    validation: Validation
    guards: Guards
    diversity: Diversity
    budget: StoppingRule | None
    trackers: tuple[Tracker, ...] | None
    cache: str | PathLike[str] | Literal[False] | None
    costs: Costs
    privacy: Privacy

    @property
    def edits_instructions(self) -> bool:
        """Whether operators or proposers edit what is learned.

        Otherwise the artifact applies lessons itself.
        """
        return isinstance(self.artifact, Instruction)

    @property
    def in_gepas_order(self) -> tuple[str, ...]:
        """The arguments that hold parts written for one update after another, as in GEPA."""
        parts = {
            "candidate_selection_strategy": not isinstance(self.candidate_selection_strategy, str),
            "component_selector": not isinstance(self.component_selector, str),
            "instruction_proposer": self.instruction_proposer is not None,
            "gepa_kwargs": self.gepa != GepaOptions(),
        }
        return tuple(name for name, is_set in parts.items() if is_set)

    @property
    def staleness(self) -> int:
        """Updates that begin before one is released: 0 beside parts written for GEPA's order."""
        if self.search.staleness is not None:
            return self.search.staleness
        return 0 if self.in_gepas_order else _OVERLAPPING[self.keep]

    @property
    def controller(self) -> BatchController:
        """What plans the sizes of minibatches."""
        if self.chosen_controller is not None:
            return self.chosen_controller
        if self.reflection_minibatch_size is not None:
            return Static(self.reflection_minibatch_size, "reflection_minibatch_size was given")
        if self.instruction_proposer is not None:
            return Static(GEPA_MINIBATCH, "what proposers of GEPA's kind are written for")
        return PowerLaw(min_updates=_UPDATES[self.keep])
