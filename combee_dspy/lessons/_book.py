"""The book: what a run has learned about one component, with the evidence for each lesson. Pure.

A lesson enters once. Later wordings of it join its entry, and so do the examples that teach them.
Edits relate lessons to each other (see :mod:`combee_dspy.edits`); none of them deletes anything.
Which lessons are served follows from the evidence: a weigher decides it (see
:mod:`combee_dspy.weighers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from combee_dspy.edits import BookEdit, Remove
from combee_dspy.lessons._changes import Changes
from combee_dspy.lessons._records import BookLesson, State, Taught, certainty, lesson_id, opposing

# How sure later examples must make it that a decision was wrong.
_CLEAR = 0.95


@dataclass(frozen=True, slots=True)
class Edited:
    """A book after edits: those that were made, and why the others were not, a sentence each."""

    book: Book
    edits: tuple[BookEdit, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Book:
    """Lessons in the order in which they entered. Every change returns another book.

    Example:
        >>> from combee_dspy.lessons import Book, Taught
        >>> book = Book().add([Taught("Round to two decimals.", ("a",))], born=0)
        >>> [lesson.text for lesson in book.served]
        ['Round to two decimals.']
    """

    lessons: tuple[BookLesson, ...] = ()

    def find(self, lesson: str) -> BookLesson | None:
        """Return the lesson that has a wording with this id."""
        return self._homes.get(lesson)

    @cached_property
    def _homes(self) -> Mapping[str, BookLesson]:
        """The lessons by the ids of their wordings; of several the first."""
        return {wording: held for held in self.lessons[::-1] for wording in held.wordings}

    @property
    def served(self) -> tuple[BookLesson, ...]:
        """Served lessons: each rule before its exceptions, else in the order of entry."""
        chosen = [lesson for lesson in self.lessons if lesson.state == "served"]
        ids = {lesson.id for lesson in chosen}
        exceptions: dict[str, list[BookLesson]] = {}
        for lesson in chosen:
            exceptions.setdefault(lesson.rule if lesson.rule in ids else "", []).append(lesson)
        ordered: list[BookLesson] = []
        left = exceptions.get("", [])[::-1]
        while left:
            lesson = left.pop()
            ordered.append(lesson)
            left += exceptions.get(lesson.id, [])[::-1]
        return tuple(ordered)

    def add(self, lessons: Iterable[Taught], born: int) -> Book:
        """Return the book with lessons that update ``born`` taught.

        A wording that is in the book already, or nearly
        (:class:`combee_dspy.reflections.NearDuplicates`), brings its examples and nothing else. So
        a lesson that a user removed does not return.
        """
        changes = Changes(self.lessons)
        for taught in lessons:
            changes.add(taught, born)
        return Book(changes.lessons)

    def without(self, texts: Iterable[str]) -> Book:
        """Return the book in which a user has removed lessons with these texts, or nearly these.

        They stay in the book, so that what is taught again in other words is united with them.
        """
        removed = tuple(texts)
        book = self.add(map(Taught, removed), born=0)
        ids = set(map(lesson_id, removed))
        return book.edit(
            Remove(lesson.id)
            for lesson in book.lessons
            if not ids.isdisjoint((lesson_id(lesson.text), *lesson.wordings))
        ).book

    def edit(self, edits: Iterable[BookEdit]) -> Edited:
        """Return the book after edits, applied in their order.

        An edit that names a lesson which the book does not hold is refused, and so is one that its
        lessons' numbers speak against. A refused edit changes nothing.
        """
        changes = Changes(self.lessons)
        accepted: list[BookEdit] = []
        refused: list[str] = []
        for edit in edits:
            problem = changes.make(edit)
            if problem:
                refused.append(f"{type(edit).__name__}: {problem}")
            else:
                accepted.append(edit)
        return Edited(Book(changes.lessons), tuple(accepted), tuple(refused))

    def reopened(self) -> Book:
        """Return the book without the decisions that later examples outweigh.

        A decision by r rows falls where n later examples on the other side give P(θ > ½ | Beta(1 +
        n, 1 + r)) ≥ 0.95: six for a row, eight for two. What a user removed stays removed.
        """
        lessons = {lesson.id: lesson for lesson in self.lessons}
        return Book(
            tuple(
                replace(lesson, decision=None) if _is_outweighed(lesson, lessons) else lesson
                for lesson in self.lessons
            )
        )

    def with_states(self, states: Mapping[str, tuple[State, str]]) -> Book:
        """Return the book with a state and a reason for each lesson that is named by its own id."""
        return Book(tuple(_in_state(lesson, states.get(lesson.id)) for lesson in self.lessons))


def _in_state(lesson: BookLesson, state: tuple[State, str] | None) -> BookLesson:
    # Most stay as they are, and a book is weighed several times with every update.
    if state is None or state == (lesson.state, lesson.reason):
        return lesson
    return replace(lesson, state=state[0], reason=state[1])


def _is_outweighed(lesson: BookLesson, lessons: Mapping[str, BookLesson]) -> bool:
    """Return whether examples that a decision did not know of speak clearly against it."""
    if lesson.decision is None:
        return False
    later = len(opposing(lesson, lesson.state, lessons)) - lesson.decision.cited
    return later > 0 and certainty(later, lesson.decision.rows) >= _CLEAR
