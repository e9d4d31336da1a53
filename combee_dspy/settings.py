"""What a run is asked to do: the arguments of ``Combee``, checked, typed and frozen."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from os import PathLike
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import dspy
from gepa.core.adapter import ProposalFn
from gepa.core.callbacks import GEPACallback
from gepa.proposer.reflective_mutation.base import CandidateSelector, ReflectionComponentSelector
from gepa.utils.stop_condition import StopperProtocol
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    SkipValidation,
    TypeAdapter,
    ValidationError,
)

from combee_dspy import registry
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
from combee_dspy.strategies import Strategy, argument_error
from combee_dspy.tracking import Tracker

__all__ = ["Auto", "FrontierType", "GepaOptions", "Keep", "Settings", "resolve_all", "to_settings"]

Auto: TypeAlias = Literal["light", "medium", "heavy"]
FrontierType: TypeAlias = Literal["instance", "objective", "hybrid", "cartesian"]
Keep: TypeAlias = Literal["pareto", "trunk"]

# The smallest number of updates an epoch, by how what was learned is kept.
_UPDATES: Mapping[Keep, int] = {"trunk": 3, "pareto": 4}
_OVERLAPPING: Mapping[Keep, int] = {"trunk": 2, "pareto": 1}

_Count = Annotated[int, Field(ge=1, strict=True)]
_Score = Annotated[float, Field(strict=True, allow_inf_nan=False)]


def resolve_all(kind: str, values: object) -> tuple[Strategy, ...]:
    """Return several strategies of a kind, from one value or several."""
    is_single = isinstance(values, (str, Strategy, registry.Spec, Mapping))
    if is_single or not isinstance(values, Iterable):
        values = (values,)
    return tuple(registry.resolve(kind, value) for value in values)


def _usual(make: Callable[[], object]) -> BeforeValidator:
    """Let ``None`` stand for the usual value."""
    return BeforeValidator(lambda value: make() if value is None else value)


def _unless_none(convert: Callable[[Any], object]) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else convert(value))


def _named(kind: str) -> BeforeValidator:
    """Let a name, a mapping or a spec stand for a strategy."""
    return BeforeValidator(partial(registry.resolve, kind))


def _to_diversity(value: object) -> object:
    if value is None or value is True:
        return Diversity()
    return Diversity.off() if value is False else value


def _to_text(place: object) -> object:
    return os.fspath(place) if isinstance(place, PathLike) else place


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

    :func:`to_settings` checks what a user gave by the annotations here.

    Attributes:
        search: As the user gave it; :attr:`staleness` follows from it.
        keep: How a run keeps what it learns. Code of a ``dspy.Flex`` gets GEPA's search where
            ``search.keep`` is ``None``, whatever ``keep`` says.
        chosen_controller: As the user gave it; :attr:`controller` follows from it.
        trackers: ``None`` for progress as the terminal can show it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"arbitrary_types_allowed": True}

    metric: Metric
    auto: Auto | None
    max_full_evals: _Count | None
    max_metric_calls: _Count | None
    reflection_minibatch_size: _Count | None
    candidate_selection_strategy: SkipValidation[str | CandidateSelector]
    reflection_lm: InstanceOf[dspy.BaseLM] | None
    skip_perfect_score: bool
    add_format_failure_as_feedback: bool
    instruction_proposer: SkipValidation[ProposalFn | None]
    code_proposer: SkipValidation[ProposalFn | None]
    component_selector: SkipValidation[str | ReflectionComponentSelector]
    num_threads: _Count | None
    failure_score: _Score
    perfect_score: _Score
    log_dir: Annotated[str | None, BeforeValidator(_to_text)]
    track_stats: bool
    use_wandb: bool
    wandb_api_key: str | None
    wandb_init_kwargs: dict[str, Any] | None
    track_best_outputs: bool
    warn_on_score_mismatch: bool
    use_mlflow: bool
    seed: Annotated[int, _usual(lambda: secrets.randbits(32))]
    gepa: InstanceOf[GepaOptions]
    artifact: InstanceOf[Artifact]
    aggregator: Annotated[InstanceOf[Aggregator], _named("aggregator")]
    operators: tuple[InstanceOf[Operator], ...]
    chosen_controller: Annotated[
        InstanceOf[BatchController] | None,
        _unless_none(partial(registry.resolve, "controller")),
        Field(validation_alias="controller"),
    ]
    executor: Annotated[InstanceOf[Executor], _named("executor")]
    search: Annotated[InstanceOf[Search], _usual(Search)]
    keep: Keep = "trunk"
    validation: Annotated[InstanceOf[Validation], _usual(Validation)]
    guards: Annotated[InstanceOf[Guards], _usual(Guards)]
    diversity: Annotated[InstanceOf[Diversity], BeforeValidator(_to_diversity)]
    budget: InstanceOf[StoppingRule] | None
    trackers: Annotated[
        tuple[InstanceOf[Tracker], ...] | None,
        _unless_none(partial(resolve_all, "tracker")),
        Field(validation_alias="tracker"),
    ]
    cache: str | PathLike[str] | Literal[False] | None
    costs: Annotated[InstanceOf[Costs], _usual(Costs)]
    privacy: Annotated[InstanceOf[Privacy], _usual(Privacy)]

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


_ADAPTER: TypeAdapter[Settings] = TypeAdapter(Settings)


def to_settings(arguments: Mapping[str, object]) -> Settings:
    """Return the settings that arguments ask for: each checked by itself, strategies resolved.

    Raises:
        ArgumentTypeError: An argument has a type that cannot be used.
        ArgumentValueError: An argument has a value that cannot be used.
        UnknownStrategyError: A strategy's name is not installed.
    """
    try:
        return _ADAPTER.validate_python(arguments)
    except ValidationError as error:
        names = tuple(field.name for field in fields(Settings))
        raise argument_error("Combee", names, error) from error
