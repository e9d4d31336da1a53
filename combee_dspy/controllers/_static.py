"""A batch size that someone chose, and why."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.controllers._base import (
    BatchController,
    BatchView,
    budget_bound,
    clamp,
    trainset_bound,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import BatchDecision
from combee_dspy.strategies import parameters


@parameters
class Static(BatchController):
    """The same size each update, clipped only to the trainset and to what the budget leaves.

    Example:
        >>> from combee_dspy.controllers import BatchView, Static
        >>> Static(40, "as in our earlier runs").plan(BatchView(update=0, trainset_size=24)).size
        24

    Args:
        size: Examples a minibatch.
        reason: Why this size, as a short phrase. Required, and shown wherever the size is, so that
            a reader of the log need not guess.
    """

    name: ClassVar[str] = "static"
    size: Annotated[int, Field(ge=1)]
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            remedy = 'Say why in a few words, for example reason="as in our earlier runs".'
            raise ArgumentValueError("reason", self.reason, "is blank", remedy)

    def plan(self, view: BatchView) -> BatchDecision:
        """Return ``size``, or what the trainset and the budget leave of it."""
        size, clamps = clamp(self.size, (trainset_bound(view), budget_bound(view)))
        return BatchDecision(size, f"static: {self.reason.strip()}", clamps=clamps)
