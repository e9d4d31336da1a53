"""The operator contract: lessons and rollouts in, an edit out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from combee_dspy.records import Demonstration, Edit, Lessons, PredictorRun, Refusal
from combee_dspy.strategies import Strategy, StrategyContext

__all__ = ["Operator", "OperatorInput"]


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """What an operator works on: one component of one parent.

    Attributes:
        instruction: The parent's instruction.
        demonstrations: The parent's demonstrations.
        signature: The predictor's ``dspy.Signature`` class, for field names and types.
        lessons: What the aggregator returned; empty where the operator needs none.
        runs: The predictor's part of every rollout of the minibatch, in minibatch order.
        perfect_score: The score of a success.
    """

    instruction: str
    demonstrations: tuple[Demonstration, ...]
    signature: Any
    lessons: Lessons
    runs: tuple[PredictorRun, ...]
    perfect_score: float = 1.0


class Operator(Strategy):
    """Applies what was learned as one edit of one component.

    Attributes:
        needs_lessons: Whether an aggregator must run first. Where no operator of
            an iteration needs lessons, the scan is skipped and costs nothing.
        edits_demonstrations: Whether its edits may change demonstrations, which
            makes them a part of every candidate.
    """

    kind: ClassVar[str] = "operator"
    needs_lessons: ClassVar[bool] = True
    edits_demonstrations: ClassVar[bool] = False

    @abstractmethod
    def apply(self, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the edit, or why there is none.

        Args:
            given: The parent's component, the lessons and the rollouts. Not to be changed.
            context: Random stream, way to the LM, and events.
        """
