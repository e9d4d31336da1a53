"""The operator contract: lessons and rollouts in, an edit out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from combee_dspy.guards import Guards
from combee_dspy.records import Demonstration, Edit, Lessons, PredictorRun, Refusal
from combee_dspy.strategies import Strategy, StrategyContext


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """What an operator works on: one component of one parent, as the parent has it.

    Attributes:
        signature: The predictor's ``dspy.Signature`` class; ``None`` where the host knows texts alone, and then no
            operator is asked that edits more.
        lessons: What the aggregator returned; empty where the operator needs none.
        runs: The predictor's part of every rollout of the minibatch, in minibatch order.
        field_descriptions: The parent's description of every field by name, ``""`` where there is none; empty where the
            signature's own are the parent's.
        guards: What the edit must not break. Whoever asks checks it again, copied text included.
        seed_instruction: The program's first instruction, whose placeholders must stay; ``None`` where not known.
        seed_field_descriptions: The program's first field descriptions; empty where they are not known.
    """

    instruction: str
    demonstrations: tuple[Demonstration, ...]
    signature: Any
    lessons: Lessons
    runs: tuple[PredictorRun, ...] = ()
    perfect_score: float = 1.0
    field_descriptions: Mapping[str, str] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    seed_instruction: str | None = None
    seed_field_descriptions: Mapping[str, str] = field(default_factory=dict)


class Operator(Strategy):
    """Applies what was learned as one edit of one component.

    Attributes:
        needs_lessons: Whether an aggregator must run first. Where no operator of an update needs lessons, the scan is
            skipped and costs nothing.
        edits_demonstrations: Whether its edits may change demonstrations, which makes them a part of every candidate.
        edits_fields: Whether its edits may change field descriptions, likewise.
        near_parent: Whether its edits say what the parent says, in other words or in another order. Such a child is not
            compared with its own parent, and order counts as a difference.
        joins_lessons: Whether one call of its own reads all lessons together, so that the last merge of a scan can be
            left to it.
    """

    kind: ClassVar[str] = "operator"
    needs_lessons: ClassVar[bool] = True
    edits_demonstrations: ClassVar[bool] = False
    edits_fields: ClassVar[bool] = False
    near_parent: ClassVar[bool] = False
    joins_lessons: ClassVar[bool] = False

    @abstractmethod
    async def apply(self, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the edit, or why there is none."""
