"""The lessons of a run's books, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from combee_dspy.journal import Reader, RunHistory
from combee_dspy.lessons import Book, BookLesson, lesson_id
from combee_dspy.memory import read_memory
from combee_dspy.tracking._lessons import books_of, count_lessons, ordered, tests_of
from combee_dspy.tracking._text import cut
from combee_dspy.tracking.report._effects import Place, rollouts_behind

__all__ = ["lesson_facts"]

_MOST_QUOTED, _MOST_TRACES = 160, 3


def lesson_facts(reader: Reader, run: int, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the lessons of the books as they stand, served ones first, and what each did:
    the examples that speak for it and against it, its measured effect, and its tests.

    The text that is returned may be an earlier one, or the student's, and lack what the book serves
    by now.
    """
    history = RunHistory(reader, run)
    books, tests = books_of(history), tests_of(history)
    in_text = {
        name: {
            lesson.id
            for line in read_memory(texts.get(name, ""), 0).lessons
            if (lesson := book.find(lesson_id(line)))
        }
        for name, book in books.items()
    }
    quoted = {
        ("", row) for book in books.values() for lesson in book.lessons for row in _shown(lesson)
    }
    rollouts = rollouts_behind(reader, run, quoted)
    rows = [
        {
            **{name: getattr(lesson, name) for name in ("text", "state", "born", "reason")},
            "component": component,
            "in_text": lesson.id in in_text[component],
            **_evidence(lesson, rollouts),
            "effect": asdict(lesson.effect) if lesson.effect else None,
            "rule": _named(book, lesson.rule),
            "rivals": [_named(book, rival) for rival in lesson.rivals],
            "tests": [str(test) for test in tests.get((component, lesson.id), ())],
        }
        for component, book in books.items()
        for lesson in ordered(book)
    ]
    counts = {
        name.removeprefix("lessons/"): round(count)
        for name, count in count_lessons(history).items()
    }
    return {"counts": counts, "components": len(books), "rows": rows}


def _shown(lesson: BookLesson) -> tuple[str, ...]:
    return (*lesson.sources[:_MOST_TRACES], *lesson.against[:_MOST_TRACES])


def _evidence(lesson: BookLesson, rollouts: Mapping[Place, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many examples speak for and against a lesson, and the traces of some."""
    sides = {"for": lesson.sources, "against": lesson.against}
    traces = [
        {"side": side, **rollouts["", row]}
        for side, examples in sides.items()
        for row in examples[:_MOST_TRACES]
        if ("", row) in rollouts
    ]
    return {**{side: len(rows) for side, rows in sides.items()}, "traces": traces}


def _named(book: Book, lesson: str) -> dict[str, str]:
    """Return a lesson's wording and state; empty where the book does not hold it."""
    held_lesson = book.find(lesson)
    if held_lesson is None:
        return {}
    return {"text": cut(held_lesson.text, _MOST_QUOTED), "state": held_lesson.state}
