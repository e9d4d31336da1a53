"""When Live learns, what a challenger must pass, and what all parts of a Live share."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import dspy
from pydantic import ConfigDict, Field, InstanceOf, SkipValidation, TypeAdapter, ValidationError

from combee_dspy.artifacts import Instruction
from combee_dspy.files import file_name
from combee_dspy.lms.redact import scrub
from combee_dspy.options import Privacy
from combee_dspy.records import Metric
from combee_dspy.strategies import argument_error, parameters
from combee_dspy.traces import Selection
from combee_strategist.canary import CanaryPlan, Clock, Registry, Serving

logger = logging.getLogger("combee_dspy")

__all__ = [
    "DAY",
    "HOUR",
    "LEAST_TOKENS",
    "Approve",
    "Gate",
    "Learning",
    "Setup",
    "Slices",
    "slip_of",
    "to_setup",
]

HOUR, DAY = 3_600.0, 86_400.0
"""Seconds."""
LEAST_TOKENS = 20_000
"""What a session needs at least: readers of a few requests, and a few rows of the gate."""

Approve = Literal["rules", "human"]
Slices = Callable[[Mapping[str, object]], str]
"""Returns the slice of a request by its inputs."""

_SLIP = 0.8
_Share = Annotated[float, Field(ge=0, le=1)]


@parameters
class Learning:
    """When Live learns, and what it may spend a day.

    Args:
        least: Labelled requests that went wrong from which on a session begins.
        hours: Hours after which one such request is enough: 24 for every night.
        tokens: Tokens in and out a day (UTC, by the clock) of readers and of the gate, at least
            20,000; ``None`` for no limit. What a day has left decides how much is read and how many
            rows are run.
        dollars: The same in dollars, by list prices.
        errors: Share of the last hour's requests that failed above which nothing is learned: the
            service is ill.
        selection: Which requests are read, and how much of each.
        num_threads: Calls and rollouts at once.
    """

    least: Annotated[int, Field(ge=1)] = 10
    hours: Annotated[float, Field(gt=0)] = 8.0
    tokens: Annotated[int, Field(ge=LEAST_TOKENS)] | None = 2_000_000
    dollars: Annotated[float, Field(gt=0)] | None = None
    errors: _Share = 0.2
    selection: Selection = Field(default_factory=Selection)
    num_threads: Annotated[int, Field(ge=1)] = 8


@parameters
class Gate:
    """What a challenger must pass before anybody's request meets it.

    Args:
        share: Share of labelled inputs that teach nothing: by a hash of the inputs, so that the
            same input is always on one side. Labels that the team vouches for never teach.
        recent: Days that count as recent: their rows are held out, older ones are the retain set.
        rows: Held-out rows at most, the newest.
        retain: Rows of the retain set at most, the same number of each slice.
        margin: How much worse, in score units, the lower end of an interval may be on either set.
        trial: Days after which a trial that is undecided ends.
        seed: Draws rows and resamples.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    recent: Annotated[float, Field(gt=0)] = 7.0
    rows: Annotated[int, Field(ge=1)] = 60
    retain: Annotated[int, Field(ge=0)] = 60
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.1
    trial: Annotated[float, Field(gt=0)] = 7.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all parts of a Live share; see :class:`~combee_strategist.live.Live` for the fields.

    :func:`to_setup` checks what a user gave by the annotations here.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"arbitrary_types_allowed": True}

    name: str
    program: InstanceOf[dspy.Module]
    metric: Metric
    reflection_lm: InstanceOf[dspy.BaseLM]
    lm: InstanceOf[dspy.BaseLM] | None = None
    judge: Metric | None = None
    trusted: tuple[SkipValidation[dspy.Example], ...]
    slices: Slices
    learning: Learning = field(default_factory=Learning)
    gate: Gate = field(default_factory=Gate)
    plan: CanaryPlan = field(default_factory=CanaryPlan)
    serving: Serving = field(default_factory=Serving)
    approve: Approve
    log_dir: Path | None = None
    uri: str | None = None
    privacy: Privacy = field(default_factory=Privacy)
    clock: Clock

    @property
    def home(self) -> Path:
        """The folder in which all journals lie."""
        return self.log_dir or Path("combee_live") / file_name(self.name)

    @property
    def requests(self) -> Path:
        """Where the servers' journals lie."""
        return self.home / "serving"

    @property
    def journal(self) -> Path:
        """Where the learner's journal lies."""
        return self.home / "learner"

    def registry(self) -> Registry:
        """Return the registry, newly asked."""
        return Registry(self.name, self.uri)

    def slice_of(self, inputs: Mapping[str, object]) -> str:
        """Return the slice of a request; ``"unknown"`` where the user's function fails.

        Requests are what anybody sends: none of them may end the learner.
        """
        try:
            return str(self.slices(inputs))
        except Exception as error:  # noqa: BLE001 - a function of the user's
            logger.warning("live %s: slices: %s", self.name, scrub(repr(error)))
            return "unknown"

    def texts(self) -> dict[str, str]:
        """Return the texts of the untouched program."""
        return Instruction().seed(self.program)

    def output_fields(self) -> frozenset[str]:
        """Return what the program's predictors answer with."""
        predictors = [predictor for _, predictor in self.program.named_predictors()]
        return frozenset(name for each in predictors for name in each.signature.output_fields)


def slip_of(name: str, names: Iterable[str]) -> str:
    """Return of which name another is a slip of the keyboard, such as ``anser``; empty of none."""
    return next(iter(difflib.get_close_matches(name, [*names], 1, _SLIP)), "")


_SETUP: TypeAdapter[Setup] = TypeAdapter(Setup)


def to_setup(arguments: Mapping[str, object]) -> Setup:
    """Return what the arguments of a Live ask for, each checked by itself; ``None`` for a default.

    Raises:
        ArgumentTypeError: An argument has a type that cannot be used.
        ArgumentValueError: An argument has a value that cannot be used.
    """
    try:
        return _SETUP.validate_python({n: v for n, v in arguments.items() if v is not None})
    except ValidationError as error:
        raise argument_error("Live", [each.name for each in fields(Setup)], error) from error
