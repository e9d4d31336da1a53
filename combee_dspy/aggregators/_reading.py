"""What calls are asked that read reflections, and the lessons in their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dspy

from combee_dspy.aggregators._citations import read_citations
from combee_dspy.records import Lesson, Reflection

__all__ = ["ReadingTask", "from_mistakes"]


@dataclass(frozen=True, slots=True)
class ReadingTask:
    """What every call that reads reflections is asked.

    The one output field of its signature holds a list of texts.

    ``limits`` are the values of its further input fields; the first of them says how many texts may
    come back. Where it ``cites``, examples carry numbers, and each text begins with those that it
    comes from.
    """

    signature: type[dspy.Signature]
    limits: Mapping[str, int]
    cites: bool = False

    @property
    def field(self) -> str:
        """The output field."""
        (name,) = self.signature.output_fields
        return str(name)

    def lessons(self, items: Sequence[Reflection], texts: Sequence[str]) -> list[Lesson]:
        """Return an answer's texts as lessons, each with the reflections that teach it.

        Without citations, all that a call read teach each of its lessons.
        """
        if self.cites:
            return read_citations(texts, items)
        sources = tuple(sorted({item.index for item in items}))
        return [Lesson(text, sources) for text in texts]


def from_mistakes(
    items: Sequence[Reflection], lessons: Sequence[Lesson]
) -> tuple[list[Lesson], list[str]]:
    """Return the lessons that a mistake teaches, and why the others are refused.

    A lesson that comes from right answers alone changes what works.
    """
    mistakes = {item.index for item in items if not item.perfect}
    taught = [lesson for lesson in lessons if not mistakes.isdisjoint(lesson.sources)]
    refused = [
        f"right answers alone teach {lesson.text[:60]!r}"
        for lesson in lessons
        if mistakes.isdisjoint(lesson.sources)
    ]
    return taught, refused
