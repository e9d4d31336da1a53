"""A lesson of a book, and what brings one in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from combee_dspy.records import Lessons, Reflection
from combee_dspy.texts import normalised

__all__ = ["BookLesson", "State", "Taught", "lesson_id", "taught"]

State = Literal["served", "waiting", "retired", "removed_by_user"]
"""``served``: in the prompt. ``waiting``: undecided, out of the prompt until more evidence comes.
``retired``: evidence speaks against it. ``removed_by_user``: never served again."""


def lesson_id(text: str) -> str:
    """Return the id of a lesson with this wording: 12 hex digits, the same for the same words."""
    return hashlib.sha256(normalised(text).encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Taught:
    """A wording, the examples that teach it (row hashes, or what else tells examples apart), and where it is filed."""

    text: str
    sources: tuple[str, ...] = ()
    section: str = ""


def taught(lessons: Lessons, reflections: Iterable[Reflection], update: int) -> list[Taught]:
    """Return what an aggregator learned from an update's reflections, by the examples that those are about."""
    names = {reflection.index: reflection.source(update) for reflection in reflections}
    return [
        Taught(
            " ".join(lesson.text.split()),
            tuple(names[index] for index in lesson.sources if index in names),
            lesson.section,
        )
        for lesson in lessons.lessons
        if lesson.text.strip()
    ]


@dataclass(frozen=True, slots=True)
class BookLesson:
    """One lesson of a book.

    Attributes:
        id: Id of its first wording. It stays when wordings join.
        text: The wording that is served.
        sources: Examples that teach it or that it helped with, each once, ascending.
        against: Examples that it harmed, each once, ascending; none of them is a source.
        helped: How often it helped before this book, with examples that nobody knows any more.
        harmed: How often it harmed before this book.
        section: Where a playbook files it; empty for its last section.
        born: The update that taught it first; −1 where it stood in the student's prompt.
        state: Whether it is served.
        reason: Why it is in this state, in a sentence; empty for a lesson that nothing speaks against.
        decided: Whether an edit set the state. Weighing leaves it alone.
        rule: Id of the lesson that it is an exception to; empty where it is none.
        rivals: Ids of the lessons that contradict it, ascending.
        wordings: Ids of all its wordings, its own first.
    """

    id: str
    text: str
    sources: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    helped: int = 0
    harmed: int = 0
    section: str = ""
    born: int = 0
    state: State = "served"
    reason: str = ""
    decided: bool = False
    rule: str = ""
    rivals: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()

    @property
    def helpful(self) -> int:
        """How many distinct examples teach it or were helped by it."""
        return self.helped + len(self.sources)

    @property
    def harmful(self) -> int:
        """How many distinct examples it harmed."""
        return self.harmed + len(self.against)

    @property
    def support(self) -> int:
        """How many distinct examples speak for it. One that cites none counts as one."""
        return max(self.helpful, 1)
