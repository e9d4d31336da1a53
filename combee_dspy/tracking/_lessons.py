"""What the books of a run hold, and every decision about a lesson, from the run's journal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from combee_dspy.journal import Reader
from combee_dspy.lessons import Book, BookLesson, Effect

__all__ = [
    "LessonDecision",
    "LessonTest",
    "books_of",
    "count_lessons",
    "decisions_of",
    "ordered",
    "tests_of",
]

_STATES = ("served", "waiting", "retired", "removed_by_user")
_EVENTS = "SELECT id, at, step, component, data FROM event WHERE run = ? AND kind = ? AND id <= ?"
_ALL = 2**62

Change = Literal["added", "united", "exception", "contradicted", "state", "tested", "void"]
"""``added``: the lesson is new. ``united``: another lesson says the same and has taken it in.
``exception``: it is an exception to another from now on. ``contradicted``: others contradict it.
``state``: it is served or not from now on. ``tested``: validation rows were run with and without
it. ``void``: a reader's answer, or a part of it, could not be used, and changed nothing.
"""


@dataclass(frozen=True, slots=True)
class LessonTest:
    """One test of a lesson on validation rows, together with others.

    Attributes:
        lesson: The lesson's id.
        text: Its wording then.
        serve: Whether it was tried in the prompt; else it was left out.
        together: Changes that were tried at once, this one among them.
        rows: Validation rows that decided.
        wins: Rows that scored more with the changes.
        losses: Rows that scored less.
        accepted: Whether the changes were made.
    """

    lesson: str
    text: str
    serve: bool
    together: int
    rows: int
    wins: int
    losses: int
    accepted: bool

    def __str__(self) -> str:
        """Return the test and its result in a sentence."""
        what = "put into the prompt" if self.serve else "left out"
        others = f" with {self.together - 1} more" if self.together > 1 else ""
        result = f"{self.wins} better, {self.losses} worse of {self.rows} validation rows"
        return f"{what}{others}: {result}, {'accepted' if self.accepted else 'not accepted'}"


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
    reader: Reader, run: int, upto: int = _ALL, step: int | None = None
) -> dict[str, Book]:
    """Return the book of each component, by component, as the last events say.

    Args:
        reader: Of the journal.
        run: The run's id.
        upto: Later events are not read.
        step: Events of later updates are not read; by default those of all updates are.
    """
    sql = f"{_EVENTS} AND (?4 IS NULL OR step <= ?4) ORDER BY id"
    rows = reader.rows(sql, (run, "book", upto, step))
    return {row["component"]: _book(json.loads(row["data"])) for row in rows}


def tests_of(reader: Reader, run: int) -> dict[tuple[str, str], list[LessonTest]]:
    """Return the tests of lessons by component and lesson, oldest first."""
    tests: dict[tuple[str, str], list[LessonTest]] = {}
    for row in reader.rows(f"{_EVENTS} ORDER BY id", (run, "tested", _ALL)):
        test = LessonTest(**json.loads(row["data"]))
        tests.setdefault((row["component"], test.lesson), []).append(test)
    return tests


def count_lessons(
    reader: Reader, run: int, upto: int = _ALL, step: int | None = None
) -> dict[str, float]:
    """Return how many lessons are in each state, and void answers; empty where no book was kept.

    Args:
        reader: Of the journal.
        run: The run's id.
        upto: Later events are not read.
        step: Events of later updates are not read; by default those of all updates are.
    """
    books = books_of(reader, run, upto, step)
    if not books:
        return {}
    states: Counter[str] = Counter(
        lesson.state for book in books.values() for lesson in book.lessons
    )
    sql = f"{_EVENTS} AND (?4 IS NULL OR step <= ?4)"
    void = [json.loads(row["data"])["count"] for row in reader.rows(sql, (run, "void", upto, step))]
    return {**{f"lessons/{state}": states[state] for state in _STATES}, "lessons/void": sum(void)}


def ordered(book: Book) -> list[BookLesson]:
    """Return a book's lessons as people read them: served ones as they are served, then the others
    by state.
    """
    others = [lesson for lesson in book.lessons if lesson.state != "served"]
    return [*book.served, *sorted(others, key=lambda lesson: _STATES.index(lesson.state))]


def decisions_of(reader: Reader, run: int) -> list[LessonDecision]:
    """Return every decision about a lesson, in the order of the journal."""
    before: dict[str, Book] = {}
    decisions: list[LessonDecision] = []
    sql = (
        "SELECT id, at, step, component, kind, data FROM event"
        " WHERE run = ? AND kind IN ('book', 'tested', 'void') ORDER BY id"
    )
    for row in reader.rows(sql, (run,)):
        component, data = row["component"] or "", json.loads(row["data"])
        place = _Place(row["id"], row["at"], row["step"], component)
        if row["kind"] == "book":
            book = _book(data)
            decisions += _changes(place, before.get(component, Book()), book)
            before[component] = book
        elif row["kind"] == "tested":
            decisions.append(_tested(place, before.get(component, Book()), LessonTest(**data)))
        else:
            why = f"{data['count']} unusable: {'; '.join(data['reasons'])}"
            decisions.append(place.decision("void", why=why))
    return decisions


@dataclass(frozen=True, slots=True)
class _Place:
    """Which event a decision comes from."""

    event: int
    at: float
    update: int
    component: str

    def decision(
        self,
        change: Change,
        lesson: BookLesson | None = None,
        before: str = "",
        after: str = "",
        others: tuple[str, ...] = (),
        why: str = "",
    ) -> LessonDecision:
        named = (lesson.id, lesson.text, len(lesson.sources)) if lesson else ("", "", 0)
        place = (self.event, self.at, self.update, self.component)
        return LessonDecision(*place, change, *named, before, after, others, why)


def _changes(place: _Place, before: Book, after: Book) -> Iterator[LessonDecision]:
    """Return what differs between two books, in the order of the lessons."""
    old = {lesson.id: lesson for lesson in before.lessons}
    for lesson in after.lessons:
        was = old.pop(lesson.id, None)
        state = was.state if was else ""
        if was is None:
            yield place.decision("added", lesson, "", lesson.state, why=lesson.reason)
        elif (was.state, was.reason) != (lesson.state, lesson.reason):
            yield place.decision("state", lesson, state, lesson.state, why=lesson.reason)
        if lesson.rule and lesson.rule != (was.rule if was else ""):
            yield place.decision("exception", lesson, state, lesson.state, (lesson.rule,))
        rivals = tuple(sorted(set(lesson.rivals) - set(was.rivals if was else ())))
        if rivals:
            yield place.decision("contradicted", lesson, state, lesson.state, rivals)
    for gone in old.values():
        home = after.find(gone.id)
        others = (home.id,) if home else ()
        yield place.decision("united", gone, gone.state, home.state if home else "", others)


def _tested(place: _Place, book: Book, test: LessonTest) -> LessonDecision:
    lesson = book.find(test.lesson)
    state = lesson.state if lesson else ""
    changed = "served" if test.serve else "retired"
    return LessonDecision(
        *(place.event, place.at, place.update, place.component, "tested"),
        lesson=test.lesson,
        text=test.text,
        examples=len(lesson.sources) if lesson else 0,
        before=state,
        after=changed if test.accepted else state,
        why=str(test),
        rows=test.rows,
        wins=test.wins,
        losses=test.losses,
        accepted=test.accepted,
    )


def _book(data: Mapping[str, Sequence[Mapping[str, object]]]) -> Book:
    return Book(tuple(map(_lesson, data["lessons"])))


def _lesson(data: Mapping[str, object]) -> BookLesson:
    lists = {name: tuple(_texts(data.get(name))) for name in ("sources", "rivals", "wordings")}
    # Journals of before wordings were written hold the first one alone.
    lists["wordings"] = lists["wordings"] or (str(data["id"]),)
    effect = Effect(**data["effect"]) if data.get("effect") else None  # type: ignore[arg-type]  # as above
    return BookLesson(**{**data, **lists, "effect": effect})  # type: ignore[arg-type]  # as search._books has written it


def _texts(value: object) -> Iterable[str]:
    return map(str, value) if isinstance(value, (list, tuple)) else ()
