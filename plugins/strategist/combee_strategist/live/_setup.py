"""What all parts of a Live share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import dspy

from combee_dspy.artifacts import Instruction
from combee_dspy.options import Privacy
from combee_dspy.records import Metric
from combee_strategist.canary import CanaryPlan, Clock, Registry, Serving
from combee_strategist.live._options import Gate, Learning

__all__ = ["Approve", "Setup", "Slices"]

Approve = Literal["rules", "human"]
Slices = Callable[[Mapping[str, object]], str]
"""Returns the slice of a request by its inputs."""


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

    def texts(self) -> dict[str, str]:
        """Return the texts of the untouched program."""
        return Instruction().seed(self.program)
