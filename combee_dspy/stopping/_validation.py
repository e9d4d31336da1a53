"""Rules on what validation says: a target, and patience."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.stopping._base import RunView, StoppingRule
from combee_dspy.strategies import parameters

__all__ = ["Patience", "Target"]


@parameters
class Target(StoppingRule):
    """Stops when a candidate has reached a mean validation score.

    The target is soft: the update that reaches it is finished. The best of
    many candidates on one validation set is biased upwards, so the score that
    is reached here is no claim; the held-out set tells.

    Args:
        score: Mean validation score, in the metric's units.
    """

    name: ClassVar[str] = "target"
    score: Annotated[float, Field(allow_inf_nan=False)]

    def check(self, view: RunView) -> str | None:
        """Return both figures once the best score is there, or ``None``."""
        best = max((score for _, score in view.validation_history), default=None)
        if best is None or best < self.score:
            return None
        return f"the target is reached: a validation score of {best:.4g} of {self.score:.4g}"


@parameters
class Patience(StoppingRule):
    """Stops when validation has not improved for a number of updates.

    An improvement is a mean validation score more than ``min_delta`` above the
    last improvement's; many small steps count once together they exceed it. An
    update that validates nothing, since its children were refused, counts as
    one without improvement. The student's score is where counting begins.

    Patience on the training score is refused. Each minibatch holds other
    examples, so its score goes up and down with them; and what learns from
    examples gets better on them long after it has stopped to get better on
    others. Either way it would stop too early or never.

    Args:
        updates: Updates without improvement.
        min_delta: What a score must exceed the last improvement's by, in the metric's units.
        on: What is watched: ``"validation"``.
    """

    name: ClassVar[str] = "patience"
    updates: Annotated[int, Field(ge=1)]
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    on: str = "validation"

    def __post_init__(self) -> None:
        if self.on != "validation":
            problem = (
                "cannot be waited on: a training score changes with the minibatch, and rises on the examples that "
                "are learned from after it has stopped to rise on others"
                if self.on.startswith("train")
                else "is nothing that patience can wait on"
            )
            remedy = "Give on='validation', with a valset of its own."
            raise ArgumentValueError("patience.on", self.on, problem, remedy)

    def check(self, view: RunView) -> str | None:
        """Return how long there has been no improvement, or ``None``."""
        if not view.validation_history:
            return None
        at, best = view.validation_history[0]
        for update, score in view.validation_history[1:]:
            if score > best + self.min_delta:
                at, best = update, score
        waited = view.updates - 1 - at
        if waited < self.updates:
            return None
        return (
            f"patience is over: no validation score above {best:.4g} by more than {self.min_delta:g} "
            f"in {waited} updates, of {self.updates}"
        )
