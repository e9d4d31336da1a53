"""Errors about plans and about versions in production.

combee_dspy.exceptions.CombeeError
├── CanaryError                   a version cannot be served, promoted or rolled back
│   ├── PromotionRefusedError     lists everything that is missing
│   └── RegistryError             it does not answer, or lacks what was published
└── PlanGapsError                 a specification is not complete: lists what is missing
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.exceptions import CombeeError

__all__ = ["CanaryError", "PlanGapsError", "PromotionRefusedError", "RegistryError"]


class CanaryError(CombeeError):
    """A version cannot be served, promoted or rolled back."""


@dataclass(eq=False, repr=False)
class PromotionRefusedError(CanaryError):
    """A challenger may not be promoted now: ``missing`` lists why."""

    name: str
    missing: tuple[str, ...]

    def __post_init__(self) -> None:
        Exception.__init__(self, f"{self.name} is not promoted: {'; '.join(self.missing)}.")


@dataclass(eq=False, repr=False)
class RegistryError(CanaryError):
    """The registry of ``name`` does not answer, or does not hold what was published."""

    name: str
    reason: str
    _says = "the registry of {name!r} cannot be used: {reason}"


@dataclass(eq=False, repr=False)
class PlanGapsError(CombeeError):
    """A specification is not complete, so there is no plan.

    Attributes:
        gaps: A line for each thing that is missing, vague, unknown or of another form.
    """

    gaps: Sequence[str]

    def __post_init__(self) -> None:
        """Say every gap, one a line."""
        Exception.__init__(self, "\n".join(self.gaps))
