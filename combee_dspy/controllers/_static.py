"""A batch size that someone chose, and why."""

from __future__ import annotations

from typing import ClassVar

from combee_dspy.controllers._base import BatchController, BatchView
from combee_dspy.controllers._clamps import apply, budget_bound, trainset_bound
from combee_dspy.controllers._validate import require_count
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import BatchDecision

__all__ = ["Static"]


class Static(BatchController):
    """The same size each iteration, clipped only to the trainset and to what the budget leaves.

    Args:
        size: Examples a minibatch, at least 1.
        reason: Why this size, as a short phrase. Required, and shown wherever the
            size is, so that a reader of the log need not guess.
    """

    name: ClassVar[str] = "static"

    def __init__(self, size: int, reason: str) -> None:
        self.size = size
        self.reason = reason

    def validate(self) -> None:
        """Check the parameters before anything is spent.

        Raises:
            ArgumentTypeError: ``size`` is no integer or ``reason`` no text.
            ArgumentValueError: ``size`` is below 1 or ``reason`` is blank.
        """
        require_count("size", self.size, 1)
        remedy = 'Say why in a few words, for example reason="as in our earlier runs".'
        if not isinstance(self.reason, str):
            raise ArgumentTypeError("reason", self.reason, "is no text", remedy)
        if not self.reason.strip():
            raise ArgumentValueError("reason", self.reason, "is blank", remedy)

    def plan(self, view: BatchView) -> BatchDecision:
        """Return ``size``, or what the trainset and the budget leave of it.

        Raises:
            ArgumentTypeError: See :meth:`validate`.
            ArgumentValueError: See :meth:`validate`.
        """
        self.validate()
        size, clamps = apply(self.size, (trainset_bound(view), budget_bound(view)))
        return BatchDecision(size, f"static: {self.reason.strip()}", clamps=clamps)
