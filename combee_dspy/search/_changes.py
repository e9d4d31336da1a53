"""Texts that differ in single lessons: some are added or taken out, and all else stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from combee_dspy.artifacts import Artifact
from combee_dspy.lessons import Book, BookEdit, BookLesson, LessonEffect, Restore, Retire, State
from combee_dspy.search._candidates import Candidate

Allows = Callable[[Candidate, Candidate], bool]
"""Whether guards and the budgets of operators let a text take the place of another."""


@dataclass(frozen=True, slots=True)
class Change:
    """One lesson that is added to a text (``serve``) or taken out, whatever the book says."""

    component: str
    lesson: BookLesson
    serve: bool

    @property
    def place(self) -> tuple[str, str]:
        """The lesson's component and id: many whole lessons take long to compare."""
        return self.component, self.lesson.id

    def edit(self, reason: str, rows: int, effect: LessonEffect | None) -> BookEdit:
        """Return the edit that makes the change in the book."""
        decision = Restore if self.serve else Retire
        return decision(self.lesson.id, reason, rows, effect)


@dataclass(frozen=True, slots=True)
class LessonLines:
    """The lessons of some books as lines of texts. Pure.

    Attributes:
        artifact: Reads the lines of a text, and writes a text with others.
        books: By component.
    """

    artifact: Artifact
    books: Mapping[str, Book]

    def open_changes(self, text: Candidate, *, serve: bool) -> list[Change]:
        """Return the changes of a text that no test and no user has decided yet.

        With ``serve``, lessons that wait and that the text lacks; otherwise served lessons that it
        shows. Only lessons of this run count. What contradicts a line of the user's own is left
        out: it could not be served beside it.
        """
        state: State = "waiting" if serve else "served"
        changes: list[Change] = []
        for component, book in self.books.items():
            own = {lesson.id for lesson in book.lessons if lesson.own}
            lines = {line.id for line in self.artifact.read(text.texts[component]).lessons}
            changes += [
                Change(component, lesson, serve)
                for lesson in book.lessons
                if lesson.state == state
                and lesson.born >= 0
                and not lesson.decided
                and lines.isdisjoint(lesson.wordings) is serve
                and not (serve and own.intersection(lesson.rivals))
            ]
        return changes

    def changed(self, text: Candidate, changes: Iterable[Change]) -> Candidate:
        """Return a text with these changes. The rivals of an added lesson leave it."""
        changes = tuple(changes)
        wanted: dict[str, dict[str, bool]] = {change.component: {} for change in changes}
        for change in changes:
            rivals = change.lesson.rivals if change.serve else ()
            wanted[change.component].update(dict.fromkeys(rivals, False))
        for change in changes:
            wanted[change.component][change.lesson.id] = change.serve
        return self._with(text, wanted)

    def follow(self, text: Candidate, before: Mapping[str, Book]) -> Candidate:
        """Return a text with what was decided of lessons since the books were as ``before``.

        A lesson that was united with a retired one leaves with it.
        """
        wanted: dict[str, dict[str, bool]] = {}
        for component, book in before.items():
            served = {wording for lesson in book.served for wording in lesson.wordings}
            wanted[component] = {
                lesson.id: lesson.state == "served"
                for lesson in self.books[component].lessons
                if (lesson.state == "served") is served.isdisjoint(lesson.wordings)
            }
        return self._with(text, wanted)

    def _with(self, text: Candidate, wanted: Mapping[str, Mapping[str, bool]]) -> Candidate:
        """Return a text that serves some lessons and not others, by component and id.

        All other lines stay. Of several lines for one lesson the first stays.
        """
        texts: dict[str, str] = {}
        for component, serves in wanted.items():
            old = text.texts[component]
            lines = self.artifact.read(old)
            place = {line.id: number for number, line in enumerate(lines.lessons)}
            gone: dict[str, tuple[State, str]] = {}
            more: list[BookLesson] = []
            for lesson in self.books[component].lessons:
                ids = sorted(place.keys() & set(lesson.wordings), key=place.__getitem__)
                is_served = serves.get(lesson.id, bool(ids))
                gone |= dict.fromkeys(ids[1:] if is_served else ids, ("retired", ""))
                if is_served and not ids:
                    more.append(replace(lesson, state="served"))
            if gone or more:
                book = Book((*lines.with_states(gone).lessons, *more))
                texts[component] = self.artifact.serve(old, book)
        return text.edited(texts)
