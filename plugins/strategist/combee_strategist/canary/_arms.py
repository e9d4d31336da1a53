"""The versions that a server holds, and what one of them made of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.costs import Meter
from combee_strategist.canary._pairs import Answer
from combee_strategist.canary._registry import Version
from combee_strategist.canary._window import Window

__all__ = ["Arm", "View", "answer_of", "run_shadow"]


@dataclass(frozen=True, slots=True)
class Arm:
    version: Version
    program: dspy.Module
    window: Window


@dataclass(frozen=True, slots=True)
class View:
    """What the registry says: replaced as a whole, so that a request sees one state of it."""

    production: Arm
    challenger: Arm | None


def answer_of(
    arm: Arm,
    purpose: str,
    started: float,
    seconds: float,
    meter: Meter,
    prediction: Any,
    error: BaseException | None,
) -> Answer:
    fields = None
    if error is None:
        # By kind: an object of the user's own may have "items" that are something else.
        has_fields = isinstance(prediction, (dspy.Example, Mapping))
        fields = dict(prediction.items()) if has_fields else {"prediction": prediction}
    reason = None if error is None else f"{type(error).__name__}: {error}"
    return Answer(arm.version.number, purpose, started, seconds, meter.usage(), fields, reason)


def run_shadow(arm: Arm, inputs: Mapping[str, Any], meter: Meter) -> Any:
    """Return what a version answers out of the caller's sight, metered apart."""
    # A plain list: meters around the caller hear what the caller pays for.
    own = dspy.context(trace=[], usage_tracker=None, callbacks=[*dspy.settings.callbacks])
    with own, dspy.context(**meter.settings()):
        if hasattr(type(arm.program), "forward"):
            return arm.program(**inputs)
        return asyncio.run(arm.program.acall(**inputs))
