"""A number of validated candidates."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.stopping import RunView, StoppingRule
from combee_dspy.strategies import parameters

__all__ = ["EnoughCandidates"]


@parameters
class EnoughCandidates(StoppingRule):
    """Stops once so many candidates were validated, the student among them.

    Args:
        candidates: How many, at least 2.
    """

    name: ClassVar[str] = "enough-candidates"
    candidates: Annotated[int, Field(ge=2)] = 8

    def check(self, view: RunView) -> str | None:
        """Return why to stop, or ``None`` to go on."""
        count = len(view.validation_history)
        return f"{count} candidates were validated." if count >= self.candidates else None
