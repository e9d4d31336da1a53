"""Checks for weighers: a book in, standings out."""

from __future__ import annotations

from functools import partial
from typing import get_args

from combee_dspy.edits import Contradict, Narrow, Remove, Retire
from combee_dspy.lessons import Book, State, Taught, lesson_id
from combee_dspy.testing._kit import attempt, expect, expect_pure
from combee_dspy.weighers import Standing, Weigher

_TEXTS = tuple(
    f"Send {thing} to gate {number}."
    for number, thing in enumerate(("apples", "bells", "clocks", "drums"))
)
_IDS = tuple(map(lesson_id, _TEXTS))


def _books() -> list[Book]:
    """Return an empty book, one without relations, and books with contradictions."""
    plain = Book().add(
        [Taught(text, tuple(map(str, range(place)))) for place, text in enumerate(_TEXTS)], 0
    )
    related = plain.edit([Contradict(_IDS[:3]), Narrow(_IDS[3], _IDS[2])]).book
    decided = related.edit([Retire(_IDS[2], "a test"), Remove(_IDS[3])]).book
    return [Book(), plain, related, decided]


def check_standings_are_of_the_books_lessons(strategy: Weigher) -> None:
    """A standing for a lesson that the book lacks would be lost in silence."""
    for book in _books():
        standings = attempt(
            partial(strategy.weigh, book), "`weigh` returns", "any book needs an answer"
        )
        ids = {lesson.id for lesson in book.lessons}
        mend = "name lessons by their `id`"
        expect(
            set(standings) <= ids,
            "ids of the book's lessons",
            f"{sorted(set(standings) - ids)}",
            mend,
        )
        right = all(
            isinstance(standing, Standing) and standing.state in get_args(State)
            for standing in standings.values()
        )
        expect(right, "a `Standing` with one of the states of a lesson", f"{standings!r:.300}")


def check_weighing_is_a_pure_function_of_the_book(strategy: Weigher) -> None:
    """A resumed or replayed run must serve the same lessons."""
    expect_pure(strategy, lambda weigher, book: dict(weigher.weigh(book)), _books())


def check_what_is_decided_stays(strategy: Weigher) -> None:
    """What a test has retired or a user removed must not come back by a vote."""
    book = _books()[-1]
    states = {lesson.id: lesson.state for lesson in strategy.applied(book).lessons}
    decided = (states[_IDS[2]], states[_IDS[3]])
    expect(
        decided == ("retired", "removed_by_user"),
        "decided lessons as they were",
        f"{decided}",
        "leave `applied` alone",
    )
