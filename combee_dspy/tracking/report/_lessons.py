"""What a run learned, for the page: the lines of its text, and its books."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from combee_dspy.events import ScanEnded, UpdateEnded
from combee_dspy.journal import Entry, RunHistory
from combee_dspy.lessons import Book, BookLesson, lesson_id
from combee_dspy.memory import read_memory
from combee_dspy.tracking._candidates import CandidateRow
from combee_dspy.tracking._learned import LearnedLine, learned_lines
from combee_dspy.tracking._lessons import books_of, count_lessons, ordered, tests_of
from combee_dspy.tracking._text import cut
from combee_dspy.tracking.report._rollouts import Place, rollouts_behind

_MOST_BEHIND, _MOST_TRACES = 5, 3
_MOST_QUOTED = 160  # characters


def line_facts(
    history: RunHistory,
    chosen: CandidateRow,
    candidates: Sequence[CandidateRow],
    scans: Sequence[Entry[ScanEnded]],
) -> list[dict[str, Any]]:
    """Return the lines of a text, each with the rollouts behind the lesson in it, and how many
    reflections that lesson covers.
    """
    parents = {entry.step: entry.event.parent for entry in history.entries(UpdateEnded)}
    lines = learned_lines(chosen, candidates)
    places = [list(_places_of(line, scans, parents)) for line in lines]
    quoted = {place for of_line in places for place in of_line[:_MOST_BEHIND]}
    rollouts = rollouts_behind(history, quoted)
    return [
        {
            **asdict(line),
            "behind": [rollouts[place] for place in of_line[:_MOST_BEHIND] if place in rollouts],
            "reflections": len(of_line),
        }
        for line, of_line in zip(lines, places, strict=True)
    ]


def _places_of(
    line: LearnedLine, scans: Sequence[Entry[ScanEnded]], parents: Mapping[int, str]
) -> Iterator[Place]:
    """Return what the reflections are about that the lessons within a line cover."""
    for scan in scans:
        if (scan.step, scan.component) != (line.step, line.part.split("::")[0]):
            continue
        texts = [lesson.text.strip() for lesson in scan.event.lessons]
        within = {number for number, text in enumerate(texts) if text and text in line.text}
        for reflection in scan.event.retained:
            if reflection.lesson in within and reflection.example:
                yield parents.get(scan.step, ""), reflection.example


def lesson_facts(history: RunHistory, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the lessons of the books, served ones first: the examples for and against each, its
    measured effect, and its tests.

    The text that is returned may be an earlier one, or the student's, and lack what the book serves
    by now.
    """
    books, tests = books_of(history), tests_of(history)
    examples = {
        ("", example)
        for book in books.values()
        for lesson in book.lessons
        for example in (*lesson.sources[:_MOST_TRACES], *lesson.against[:_MOST_TRACES])
    }
    rollouts = rollouts_behind(history, examples)
    rows = []
    for component, book in books.items():
        lines = read_memory(texts.get(component, ""), 0).lessons
        in_text = {lesson.id for line in lines if (lesson := book.find(lesson_id(line)))}
        for lesson in ordered(book):
            facts = {name: getattr(lesson, name) for name in ("text", "state", "born", "reason")}
            facts |= {
                "component": component,
                "in_text": lesson.id in in_text,
                **_evidence(lesson, rollouts),
                "effect": lesson.effect,
                "rule": _named(book, lesson.rule),
                "rivals": [_named(book, rival) for rival in lesson.rivals],
                "tests": [str(test) for test in tests.get((component, lesson.id), ())],
            }
            rows.append(facts)
    counts = {name.removeprefix("lessons/"): n for name, n in count_lessons(history).items()}
    return {"counts": counts, "components": len(books), "rows": rows}


def _evidence(lesson: BookLesson, rollouts: Mapping[Place, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many examples speak for and against a lesson, and the traces of some."""
    sides = {"for": lesson.sources, "against": lesson.against}
    traces = [
        {"side": side, **rollouts["", example]}
        for side, examples in sides.items()
        for example in examples[:_MOST_TRACES]
        if ("", example) in rollouts
    ]
    return {**{side: len(examples) for side, examples in sides.items()}, "traces": traces}


def _named(book: Book, lesson: str) -> dict[str, str]:
    """Return a lesson's wording and state; empty where the book does not hold it."""
    other = book.find(lesson)
    return {"text": cut(other.text, _MOST_QUOTED), "state": other.state} if other else {}
