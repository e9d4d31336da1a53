"""A number of validated candidates."""

from __future__ import annotations

from typing import ClassVar

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.stopping import RunView, StoppingRule

__all__ = ["EnoughCandidates"]


class EnoughCandidates(StoppingRule):
    """Stops once so many candidates were validated, the student among them.

    Args:
        candidates: How many, at least 2.
    """

    name: ClassVar[str] = "enough-candidates"

    def __init__(self, candidates: int = 8) -> None:
        self.candidates = candidates

    def check(self, view: RunView) -> str | None:
        """Return why to stop, or ``None`` to go on.

        Raises:
            ArgumentValueError: ``candidates`` is below 2.
        """
        if self.candidates < 2:
            raise ArgumentValueError("candidates", self.candidates, "is below 2", "The student is the first.")
        found = len(view.validation_scores)
        return f"{found} candidates were validated." if found >= self.candidates else None
