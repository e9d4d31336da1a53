"""What the books of a run hold, and every decision about a lesson, from the run's journal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from combee_dspy.events import AnswersIgnored, BookChanged, Event, LessonTested
from combee_dspy.journal import RunHistory
from combee_dspy.lessons import Book, BookLesson

_STATES = ("served", "waiting", "retired", "removed_by_user")

Change = Literal["added", "united", "exception", "contradicted", "state", "tested", "void"]
"""``added``: the lesson is new. ``united``: another lesson says the same and has taken it in.
``exception``: it is an exception to another from now on. ``contradicted``: others contradict it.
``state``: it is served or not from now on. ``tested``: validation rows were run with and without
it. ``void``: a reader's answer, or a part of it, could not be used, and changed nothing.
"""


@dataclass(frozen=True, slots=True)
class LessonDecision:
    """One row of the table of decisions.

    Attributes:
        event: Id of the journal's event.
        at: When, in Unix seconds.
        update: The update; −1 before the first.
        component: The component.
        change: What happened; see :data:`Change`.
        lesson: The lesson's id; empty for an answer that is void.
        text: Its wording.
        examples: Distinct examples that taught it by then.
        before: Its state before; empty where it is new.
        after: Its state after.
        others: Ids of the lessons that it was related to.
        why: The reason, in a sentence.
        rows: Of a test: validation rows that decided.
        wins: Of a test: rows that scored more with the change.
        losses: Of a test: rows that scored less.
        accepted: Of a test: whether the change was made.
    """

    event: int
    at: float
    update: int
    component: str
    change: Change
    lesson: str = ""
    text: str = ""
    examples: int = 0
    before: str = ""
    after: str = ""
    others: tuple[str, ...] = ()
    why: str = ""
    rows: int | None = None
    wins: int | None = None
    losses: int | None = None
    accepted: bool | None = None


def books_of(
    history: RunHistory, upto: int = sys.maxsize, last_step: int | None = None
) -> dict[str, Book]:
    """Return the book of each component, by component, as the last events say.

    Args:
        history: Of the run.
        upto: Later events are not read.
        last_step: Events of later updates are not read; by default those of all updates are.
    """
    entries = history.entries(BookChanged, upto=upto, last_step=last_step)
    return {entry.component: entry.event.book for entry in entries}


def tests_of(history: RunHistory) -> dict[tuple[str, str], list[LessonTested]]:
    """Return the tests of lessons by component and lesson, oldest first."""
    tests: dict[tuple[str, str], list[LessonTested]] = {}
    for entry in history.entries(LessonTested):
        tests.setdefault((entry.component, entry.event.lesson), []).append(entry.event)
    return tests


def count_lessons(
    history: RunHistory, upto: int = sys.maxsize, last_step: int | None = None
) -> dict[str, float]:
    """Return how many lessons are in each state, and void answers; empty where no book was kept.

    Args:
        history: Of the run.
        upto: Later events are not read.
        last_step: Events of later updates are not read; by default those of all updates are.
    """
    books = books_of(history, upto, last_step)
    if not books:
        return {}
    states: Counter[str] = Counter(
        lesson.state for book in books.values() for lesson in book.lessons
    )
    ignored = history.entries(AnswersIgnored, upto=upto, last_step=last_step)
    return {
        **{f"lessons/{state}": states[state] for state in _STATES},
        "lessons/void": sum(entry.event.count for entry in ignored),
    }


def ordered(book: Book) -> list[BookLesson]:
    """Return a book's lessons as people read them: served ones as they are served, then the others
    by state.
    """
    others = [lesson for lesson in book.lessons if lesson.state != "served"]
    return [*book.served, *sorted(others, key=lambda lesson: _STATES.index(lesson.state))]


def decisions_of(history: RunHistory) -> list[LessonDecision]:
    """Return every decision about a lesson, in the order of the journal."""
    books: dict[str, Book] = {}
    decisions: list[LessonDecision] = []
    kinds: tuple[type[Event], ...] = (BookChanged, LessonTested, AnswersIgnored)
    for entry in history.entries(*kinds):
        decide = partial(LessonDecision, entry.id, entry.at, entry.step, entry.component)
        book = books.get(entry.component, Book())
        match entry.event:
            case BookChanged(book=changed):
                decisions += _changes(decide, book, changed)
                books[entry.component] = changed
            case LessonTested() as test:
                decisions.append(_tested(decide, book, test))
            case AnswersIgnored(count=count, reasons=reasons):
                decisions.append(decide("void", why=f"{count} unusable: {'; '.join(reasons)}"))
    return decisions


def _changes(
    decide: Callable[..., LessonDecision], before: Book, after: Book
) -> Iterator[LessonDecision]:
    """Return what differs between two books, in the order of the lessons."""
    old_lessons = {lesson.id: lesson for lesson in before.lessons}
    for lesson in after.lessons:
        old = old_lessons.pop(lesson.id, None)
        about = _about(lesson, old.state if old else "", lesson.state)
        if old is None:
            yield decide("added", **about, why=lesson.reason)
        elif (old.state, old.reason) != (lesson.state, lesson.reason):
            yield decide("state", **about, why=lesson.reason)
        if lesson.rule and lesson.rule != (old.rule if old else ""):
            yield decide("exception", **about, others=(lesson.rule,))
        rivals = tuple(sorted(set(lesson.rivals) - set(old.rivals if old else ())))
        if rivals:
            yield decide("contradicted", **about, others=rivals)
    for gone in old_lessons.values():
        home = after.find(gone.id)
        state, others = (home.state, (home.id,)) if home else ("", ())
        yield decide("united", **_about(gone, gone.state, state), others=others)


def _about(lesson: BookLesson, before: str, after: str) -> dict[str, Any]:
    return {
        "lesson": lesson.id,
        "text": lesson.text,
        "examples": len(lesson.sources),
        "before": before,
        "after": after,
    }


def _tested(
    decide: Callable[..., LessonDecision], book: Book, test: LessonTested
) -> LessonDecision:
    lesson = book.find(test.lesson)
    state = lesson.state if lesson else ""
    changed = "served" if test.serve else "retired"
    return decide(
        "tested",
        lesson=test.lesson,
        text=test.text,
        examples=len(lesson.sources) if lesson else 0,
        before=state,
        after=changed if test.accepted else state,
        why=str(test),
        **{name: getattr(test, name) for name in ("rows", "wins", "losses", "accepted")},
    )
