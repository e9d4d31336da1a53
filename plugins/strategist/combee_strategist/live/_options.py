"""When Live learns, what a challenger must pass, and what all parts of a Live share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import dspy
from pydantic import Field

from combee_dspy.artifacts import Instruction
from combee_dspy.lms.redact import scrub
from combee_dspy.options import Privacy
from combee_dspy.records import Metric
from combee_dspy.strategies import parameters
from combee_dspy.traces import Selection
from combee_strategist.canary import CanaryPlan, Clock, Registry, Serving

logger = logging.getLogger("combee_dspy")

__all__ = ["DAY", "HOUR", "LEAST_TOKENS", "Approve", "Gate", "Learning", "Setup", "Slices"]

HOUR, DAY = 3_600.0, 86_400.0
"""Seconds."""
LEAST_TOKENS = 20_000
"""What a session needs at least: readers of a few requests, and a few rows of the gate."""

Approve = Literal["rules", "human"]
Slices = Callable[[Mapping[str, object]], str]
"""Returns the slice of a request by its inputs."""

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


@dataclass(frozen=True, slots=True)
class Setup:
    """What all parts of a Live share; see :class:`~combee_strategist.live.Live` for the fields.

    ``home`` is the folder in which all journals lie.
    """

    name: str
    program: dspy.Module
    metric: Metric
    reflection_lm: dspy.BaseLM
    lm: dspy.BaseLM | None
    judge: Metric | None
    trusted: tuple[dspy.Example, ...]
    slices: Slices
    learning: Learning
    gate: Gate
    plan: CanaryPlan
    serving: Serving
    approve: Approve
    home: Path
    uri: str | None
    privacy: Privacy
    clock: Clock

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
