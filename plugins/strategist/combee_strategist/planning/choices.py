"""What a plan starts from: the numbers that a specification may override, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from combee_dspy.diversity import CharNgrams
from combee_dspy.registry import names
from combee_dspy.rollouts import Batching
from combee_strategist.diagnosis import MARGIN, Diagnosis
from combee_strategist.exceptions import PlanGapsError
from combee_strategist.planning.spec import Spec

__all__ = ["REASONS", "Choices", "Measured", "choose"]

_MARGIN = 10  # points: who accepts a larger loss has no claim left to defend

REASONS = ("cache", "controller", "judge")
"""Overrides that replace no number: why the cache is off, a batch static, a judge large."""

CANARY = {"annoys": (0.1, 12.0), "costs": (0.05, 24.0), "harms": (0.02, 72.0)}
"""By the kind of failure, the share of the requests that a canary tries and its hours.

What cannot be undone is tried on few requests and for long, so that each kind of traffic of three
days has come by; 5 % for 24 hours is what the mission of this project names.
"""


class Choices(BaseModel):
    """What a plan starts from; every one can be overridden with a reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: Annotated[int, Field(ge=1)]
    rollouts: Annotated[int, Field(ge=1)]
    margin_points: Annotated[float, Field(gt=0, le=_MARGIN)] = 100 * MARGIN
    flush_seconds: Annotated[float, Field(gt=0, le=60)] = 0.2
    variance: Annotated[float, Field(gt=0, lt=0.25)] = 0.01
    operators: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "insert",
        "rephrase",
        "reorder",
        "few-shot-swap",
        "instruction-channel",
    )
    similarity: Annotated[float, Field(gt=0, lt=1)] = CharNgrams.MEASURED_THRESHOLD
    calibration_share: Annotated[float, Field(ge=0.01, le=1)] = 0.05
    spearman: Annotated[float, Field(ge=0.5, le=1)] = 0.7
    patience: Annotated[int, Field(ge=1, le=100)] = 3
    target_points: Annotated[float, Field(gt=0, le=100)] = 1.0
    canary_share: Annotated[float, Field(ge=0.001, le=1)] = 0.05
    canary_hours: Annotated[float, Field(ge=0.1, allow_inf_nan=False)] = 24.0
    canary_points: Annotated[float, Field(gt=0, le=_MARGIN)] = 0.5

    @property
    def batching(self) -> Batching:
        """When waiting rollouts go."""
        return Batching("target", self.flush_seconds, self.variance)

    @field_validator("operators")
    @classmethod
    def _check_names(cls, chosen: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(chosen) - {*names("operator")}:
            raise ValueError(f"no operator is called {', '.join(sorted(unknown))}")
        return chosen


@dataclass(frozen=True, slots=True)
class Measured:
    """What the serial search shows.

    Attributes:
        diagnosis: Whether it has converged.
        seconds: Of each rollout.
        spent: What the whole has paid: rollouts, tokens, dollars, GPU-seconds, seconds.
        updates: Updates that it made.
    """

    diagnosis: Diagnosis
    seconds: Sequence[float]
    spent: Mapping[str, Any]
    updates: int


def choose(spec: Spec, measured: Measured | None, workers: int | None = None) -> Choices:
    """Return the numbers of a plan: overridden, measured, or else their defaults.

    Args:
        spec: Without gaps.
        measured: What the serial search shows; ``None`` before it is read.
        workers: What an earlier wide search lets the number of workers grow to.

    Raises:
        PlanGapsError: An override is not known, or its value cannot be used.
    """
    serial = spec.serial.rollouts
    if measured is not None and measured.diagnosis.to_plateau is not None:
        serial = measured.diagnosis.to_plateau
    share, hours = CANARY[spec.failure]
    start: dict[str, Any] = {
        "workers": workers or 8 * spec.serial.workers,
        "rollouts": 4 * serial,
        "canary_share": share,
        "canary_hours": hours,
    }
    overridden = {
        name: override.value for name, override in spec.overrides.items() if name not in REASONS
    }
    try:
        return Choices(**{**start, **overridden})
    except ValidationError as error:
        allowed = f"known are {', '.join([*Choices.model_fields, *REASONS])}"
        raise PlanGapsError(
            [
                f"overrides.{problem['loc'][0]} cannot be used ({problem['msg']}): {allowed}"
                for problem in error.errors()
            ]
        ) from error
