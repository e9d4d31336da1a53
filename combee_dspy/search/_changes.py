"""Changes to single lessons of a text: they are added to it or taken out, and nothing else of it
changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from combee_dspy.lessons import Book, BookEdit, BookLesson, LessonEffect, Restore, Retire, State
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate

__all__ = ["Change", "changed", "follow", "open_changes"]


@dataclass(frozen=True, slots=True)
class Change:
    """One lesson served or not, in the place of what the book says.

    Attributes:
        chosen_on: The validation row that it was chosen on among others.
    """

    component: str
    lesson: BookLesson
    serve: bool
    chosen_on: int | None = field(default=None, compare=False)

    def edit(self, reason: str, rows: int, effect: LessonEffect | None) -> BookEdit:
        """Return the edit that makes the change in the book."""
        decision = Restore if self.serve else Retire
        return decision(self.lesson.id, reason, rows, effect)


def open_changes(books: Books, text: Candidate, *, serve: bool) -> list[Change]:
    """Return changes to lessons that this run has learned and nothing has decided.

    Those are lessons that wait and that a text does not show, to be served; or those that are
    served and that it shows, to be left out. What contradicts a line of the user's own is not
    tried: it could not be served beside it.
    """
    state: State = "waiting" if serve else "served"
    changes: list[Change] = []
    for component, book in books.now.items():
        lines_of = _lines_by_lesson(books, text, component)
        for lesson in book.lessons:
            is_open = lesson.state == state and lesson.born >= 0 and not lesson.decided
            if serve and any((rival := book.find(name)) and rival.own for name in lesson.rivals):
                continue
            if is_open and (lesson.id in lines_of) is not serve:
                changes.append(Change(component, lesson, serve))
    return changes


def changed(books: Books, base: Candidate, changes: Sequence[Change]) -> Candidate:
    """Return a candidate with these changes."""
    texts: dict[str, str] = {}
    for component in {change.component for change in changes}:
        own = [change for change in changes if change.component == component]
        states: dict[str, State] = {}
        for change in own:
            # What contradicts a line that is served cannot be served beside it.
            states.update(dict.fromkeys(change.lesson.rivals if change.serve else (), "waiting"))
        states.update({change.lesson.id: "served" if change.serve else "retired" for change in own})
        texts[component] = _with_states(books, base, component, states)
    return base.edited(texts)


def follow(books: Books, text: Candidate, before: Mapping[str, Book]) -> Candidate:
    """Return a text with what was decided of lessons since the books were as they were before.

    A lesson that was united with a retired one is retired with it.
    """
    texts: dict[str, str] = {}
    for component, book in before.items():
        states: dict[str, State] = {}
        for lesson in books.now[component].lessons:
            earlier = [old for wording in lesson.wordings if (old := book.find(wording))]
            was_served = any(old.state == "served" for old in earlier)
            if was_served is not (lesson.state == "served"):
                states[lesson.id] = lesson.state
        texts[component] = _with_states(books, text, component, states)
    return text.edited(texts)


def _lines_by_lesson(books: Books, text: Candidate, component: str) -> dict[str, list[str]]:
    """Return the lessons that a text shows: the ids of their lines, by the book's id."""
    book = books.now[component]
    lines_of: dict[str, list[str]] = {}
    for line in books.artifact.read(text.texts[component]).lessons:
        held = book.find(line.id)
        lines_of.setdefault(line.id if held is None else held.id, []).append(line.id)
    return lines_of


def _with_states(books: Books, base: Candidate, component: str, states: Mapping[str, State]) -> str:
    """Return a component's text with some lessons added or taken out, all others as they stand in
    it.

    Of lines that the book holds for the same lesson, the first is left.
    """
    text = base.texts[component]
    lines_of = _lines_by_lesson(books, base, component)
    gone: dict[str, tuple[State, str]] = {
        line: ("retired", "")
        for lesson, lines in lines_of.items()
        for line in lines[states.get(lesson, "served") == "served" :]
    }
    more = [
        replace(lesson, state="served")
        for lesson in books.now[component].lessons
        if states.get(lesson.id) == "served" and lesson.id not in lines_of
    ]
    if not gone and not more:
        return text
    return books.artifact.serve(
        text, Book((*books.artifact.read(text).with_states(gone).lessons, *more))
    )
