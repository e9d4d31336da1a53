"""The lessons of a run's books, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from combee_dspy.journal import RunHistory
from combee_dspy.lessons import Book, lesson_id
from combee_dspy.memory import read_memory
from combee_dspy.tracking._lessons import books_of, count_lessons, ordered, tests_of
from combee_dspy.tracking._text import cut

__all__ = ["lesson_facts"]

_MOST_QUOTED = 160


def lesson_facts(history: RunHistory, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the lessons of the books as they stand, those that are served first, and how they
    relate.

    The text that is returned may be an earlier one, or the student's, and lack what the book serves
    by now.
    """
    books, tests = books_of(history), tests_of(history)
    in_text = {
        name: {
            lesson.id
            for line in read_memory(texts.get(name, ""), 0).lessons
            if (lesson := book.find(lesson_id(line)))
        }
        for name, book in books.items()
    }
    rows = [
        {
            **{name: getattr(lesson, name) for name in ("text", "state", "born", "reason")},
            "component": component,
            "in_text": lesson.id in in_text[component],
            "examples": len(lesson.sources),
            "rule": _named(book, lesson.rule),
            "rivals": [_named(book, rival) for rival in lesson.rivals],
            "tests": [
                str(test)
                for test in (*tests.get((component, lesson.id), ()), lesson.effect)
                if test
            ],
        }
        for component, book in books.items()
        for lesson in ordered(book)
    ]
    counts = {
        name.removeprefix("lessons/"): round(count)
        for name, count in count_lessons(history).items()
    }
    return {"counts": counts, "components": len(books), "rows": rows}


def _named(book: Book, lesson: str) -> dict[str, str]:
    """Return a lesson's wording and state; empty where the book does not hold it."""
    held_lesson = book.find(lesson)
    if held_lesson is None:
        return {}
    return {"text": cut(held_lesson.text, _MOST_QUOTED), "state": held_lesson.state}
