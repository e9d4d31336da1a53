"""Reading lessons out of what an LM returned. Its output is hostile until it has passed here."""

from __future__ import annotations

import re
from typing import Any

from combee_dspy.reflections import join_texts

__all__ = ["MAX_LESSON_CHARS", "parse_lessons"]

MAX_LESSON_CHARS = 1_200
"""A lesson is one or two sentences; a formula with its conditions may need more. What is longer is cut and reported."""

_BULLET = re.compile(r"^(?:[-*•–]|\(?\d{1,3}[.)])\s+")
_NOTHING = frozenset({"none", "n/a", "null", "no lessons", "no new lessons"})
_KEYS = ("lesson", "text", "content", "value")


def parse_lessons(value: Any, most: int | None = None) -> tuple[list[str], list[str]]:
    """Return the lessons in an LM's answer, cleaned, and what had to be changed.

    A list is taken item by item; a text is taken line by line. Bullets and
    numbering are removed, white space is made single, empty items and repeated
    ones are dropped.

    Args:
        value: What stands in the output field; anything at all.
        most: The most lessons to keep, or ``None`` for all.

    Returns:
        The lessons, and one sentence for each cut that lost text.
    """
    notes: list[str] = []
    lessons: list[str] = []
    for text in join_texts([_texts(value)]):
        if len(text) > MAX_LESSON_CHARS:
            notes.append(f"a lesson of {len(text):,} characters was cut to {MAX_LESSON_CHARS:,}")
            text = text[:MAX_LESSON_CHARS].rstrip() + " …"
        lessons.append(text)
    if most is not None and len(lessons) > most:
        notes.append(f"{len(lessons)} lessons came back, the first {most} were kept")
        lessons = lessons[:most]
    return lessons, notes


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return _lines(value, every_line=True)
    if isinstance(value, dict):
        value = [value[key] for key in _KEYS if key in value][:1]
    if not isinstance(value, (list, tuple)):
        return []
    # One level of nesting is what models really return; no answer may make this recurse without end.
    return [text for item in value for text in _lines(_flat(item))]


def _flat(item: Any) -> str:
    if isinstance(item, dict):
        item = next((item[key] for key in _KEYS if key in item), None)
    return item if isinstance(item, str) else ""


def _lines(text: str, *, every_line: bool = False) -> list[str]:
    """Return the lessons in one text: its bullets where it has several, else its lines or the whole of it."""
    lines = [line for line in (line.strip() for line in text.splitlines()) if line and not line.startswith("```")]
    if sum(1 for line in lines if _BULLET.match(line)) < 2:
        return _cleaned(lines if every_line else [" ".join(lines)])
    grouped: list[str] = []
    for line in lines:
        if _BULLET.match(line):
            grouped.append(line)
        elif grouped:
            # A bullet that wraps goes on here; what stands before the first bullet introduces the list.
            grouped[-1] += " " + line
    return _cleaned(grouped)


def _cleaned(lines: list[str]) -> list[str]:
    texts = [" ".join(_printable(_BULLET.sub("", line)).split()) for line in lines]
    return [text for text in texts if text.casefold().strip(".") not in _NOTHING and any(c.isalnum() for c in text)]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
