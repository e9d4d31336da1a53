"""Rules on what validation says: a target, and patience."""

from __future__ import annotations

import math
from typing import ClassVar

from combee_dspy.bounds import check_number, check_whole
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.stopping._base import RunView, StoppingRule

__all__ = ["Patience", "Target"]


class Target(StoppingRule):
    """Stops when a candidate has reached a mean validation score.

    The target is soft: the iteration that reaches it is finished. The best of
    many candidates on one validation set is biased upwards, so the score that
    is reached here is no claim; the held-out set tells.

    Args:
        score: Mean validation score, in the metric's units.

    Raises:
        ArgumentTypeError: ``score`` is not a number.
        ArgumentValueError: ``score`` is not finite.
    """

    name: ClassVar[str] = "target"

    def __init__(self, score: float) -> None:
        self.score = score
        check_number("target.score", score)

    def check(self, view: RunView) -> str | None:
        """Return both figures once the best score is there, or ``None``."""
        best = max(view.validation_scores, default=-math.inf)
        if best < self.score:
            return None
        return f"the target is reached: a validation score of {best:.4g} of {self.score:.4g}"


class Patience(StoppingRule):
    """Stops when validation has not improved for a number of iterations.

    An improvement is a mean validation score more than ``min_delta`` above the
    last improvement's; many small steps count once together they exceed it. An
    iteration that validates nothing, since its children were refused, counts as
    one without improvement. The seed's score is where counting begins.

    Patience on the training score is refused. Each minibatch holds other
    examples, so its score goes up and down with them; and what learns from
    examples gets better on them long after it has stopped to get better on
    others. Either way it would stop too early or never.

    Args:
        iterations: Iterations without improvement, at least 1.
        min_delta: What a score must exceed the last improvement's by, in the metric's units.
        on: What is watched: ``"validation"``.

    Raises:
        ArgumentTypeError: ``iterations`` is no whole number, or ``min_delta`` no number.
        ArgumentValueError: ``iterations`` is below 1, ``min_delta`` is negative or not finite, or
            ``on`` is not ``"validation"``.
    """

    name: ClassVar[str] = "patience"

    def __init__(self, iterations: int, min_delta: float = 0.0, on: str = "validation") -> None:
        self.iterations = iterations
        self.min_delta = min_delta
        self.on = on
        check_whole("patience.iterations", iterations, 1)
        check_number("patience.min_delta", min_delta)
        if min_delta < 0:
            raise ArgumentValueError("patience.min_delta", min_delta, "is negative", "Give 0 or more.")
        if on != "validation":
            problem = (
                "cannot be waited on: a training score changes with the minibatch, and rises on the examples that "
                "are learned from after it has stopped to rise on others"
                if isinstance(on, str) and on.startswith("train")
                else "is nothing that patience can wait on"
            )
            raise ArgumentValueError("patience.on", on, problem, "Give on='validation', with a valset of its own.")

    def check(self, view: RunView) -> str | None:
        """Return how long there has been no improvement, or ``None``.

        Raises:
            ArgumentValueError: The view says what candidates scored and not when.
        """
        if len(view.validation_history) != len(view.validation_scores):
            figures = (len(view.validation_history), len(view.validation_scores))
            remedy = "Give (iteration, score) for every candidate of validation_scores."
            raise ArgumentValueError("validation_history", figures, "does not tell when each was validated", remedy)
        if not view.validation_history:
            return None
        at, best = view.validation_history[0]
        for iteration, score in view.validation_history[1:]:
            if score > best + self.min_delta:
                at, best = iteration, score
        waited = view.iteration - at
        if waited < self.iterations:
            return None
        return (
            f"patience is over: no validation score above {best:.4g} by more than {self.min_delta:g} "
            f"in {waited} iterations, of {self.iterations}"
        )
