"""Lessons as a numbered list, the most often seen first."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Edit, Refusal
from combee_dspy.strategies import StrategyContext, parameters

__all__ = ["MostSeenFirst"]

HEADING = "Rules, the most often seen first:"


@parameters
class MostSeenFirst(Operator):
    """Writes the lessons below the instruction, those of many rollouts above those of few.

    Args:
        most: Lessons to write, at least 1.
    """

    name: ClassVar[str] = "most-seen-first"
    most: Annotated[int, Field(ge=1)] = 12

    async def apply(self, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the instruction with its list, or refuse where every lesson is there already."""
        new = [lesson for lesson in given.lessons.lessons if lesson.text not in given.instruction]
        if not new:
            return Refusal("the instruction holds every lesson")
        ranked = sorted(new, key=lambda lesson: -len(lesson.sources))[: self.most]
        lines = [f"{number}. {lesson.text}" for number, lesson in enumerate(ranked, start=1)]
        return Edit("\n".join([given.instruction, "", HEADING, *lines]))
