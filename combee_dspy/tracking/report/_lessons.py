"""What a run learned, for the page: the lines of its text, its books, and lookups in a memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from combee_dspy.artifacts import Memory
from combee_dspy.events import ScanEnded, UpdateEnded
from combee_dspy.exceptions import UnknownStrategyError
from combee_dspy.journal import Entry, RunHistory
from combee_dspy.lessons import Book, BookLesson, lesson_id
from combee_dspy.memory import query_of, read_memory, shelf_of
from combee_dspy.registry import Spec
from combee_dspy.tracking._candidates import CandidateRow, lineage_of
from combee_dspy.tracking._learned import LearnedLine, learned_lines
from combee_dspy.tracking._lessons import books_of, count_lessons, ordered, tests_of
from combee_dspy.tracking._text import cut
from combee_dspy.tracking.report._rollouts import Place, rollouts_behind

_MOST_BEHIND, _MOST_TRACES, _MOST_LOOKUPS = 5, 3, 500
_MOST_QUOTED, _MOST_LOOKED_UP = 160, 200  # characters
_VALIDATION = (
    "SELECT candidate, example, score, json_extract(value, '$.calls') AS calls FROM effect"
    " WHERE run = ? AND kind = 'rollout' AND split = 'validation' ORDER BY id"
)


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


def lookup_facts(
    history: RunHistory, chosen: CandidateRow, candidates: Sequence[CandidateRow]
) -> list[dict[str, Any]]:
    """Return the validation rows of a memory: the first score of each, the last one by the chosen
    text or an ancestor, and the lessons that the chosen text shows it.

    None for another artifact, nor where a lookup would wait for a service, or goes by a class that
    no name leads to.
    """
    spec = history.about.spec("artifact")
    if spec.get("name") != Memory.name:
        return []
    try:
        memory = Spec.from_dict(spec).build()
    except UnknownStrategyError:
        return []
    if not isinstance(memory, Memory) or memory.retriever.waits:
        return []
    lineage = {row.candidate for row in lineage_of(chosen, candidates)}
    rows: dict[str, dict[str, Any]] = {}
    for candidate, example, score, calls in history.reader.stream(_VALIDATION, (history.run,)):
        if candidate in lineage and (example in rows or len(rows) < _MOST_LOOKUPS):
            before = rows.get(example, {"before": score})
            lookups = _looked_up(memory, chosen.texts, json.loads(calls or "[]"))
            rows[example] = {**before, "after": score, **lookups}
    return list(rows.values())


def _looked_up(
    memory: Memory, texts: Mapping[str, str], calls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the inputs of a row's first call, and the lessons that its calls are shown."""
    lessons: dict[str, None] = {}
    for call in calls:
        if text := texts.get(call["predictor"]):
            shelf = shelf_of(text, memory.retriever, memory.budget_tokens)
            lessons |= dict.fromkeys(shelf.lessons(call["inputs"]))
    inputs = " ".join(query_of(call["inputs"]) for call in calls[:1])
    return {
        "inputs": cut(inputs, _MOST_LOOKED_UP),
        "lessons": [cut(line, _MOST_LOOKED_UP) for line in lessons],
    }
