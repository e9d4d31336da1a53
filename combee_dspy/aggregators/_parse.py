"""Reading lessons out of what an LM returned. Its output is hostile until it has passed here."""

from __future__ import annotations

import re
from typing import Any

from combee_dspy.reflections import join_texts

MAX_LESSON_CHARS = 1_200
"""A lesson is one or two sentences; a formula with its conditions may need more. What is longer is cut and reported."""

_BULLET = re.compile(r"^(?:[-*•–]|\(?\d{1,3}[.)])\s+")
_NOTHING = frozenset({"none", "n/a", "null", "no lessons", "no new lessons"})


def parse_lessons(value: Any, most: int | None = None) -> tuple[list[str], list[str]]:
    """Return the lessons in an LM's answer, cleaned, and what had to be changed.

    Bullets and numbering are removed, white space is made single, empty items and repeated
    ones are dropped. An item that holds several bullets becomes one lesson for each. What is
    neither a list of texts nor a text holds no lessons.

    Returns:
        The lessons, ``most`` of them at most, and one sentence for each cut that lost text.
    """
    items = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    notes: list[str] = []
    lessons: list[str] = []
    for text in join_texts(_lessons_in(item) for item in items if isinstance(item, str)):
        if len(text) > MAX_LESSON_CHARS:
            notes.append(f"a lesson of {len(text):,} characters was cut to {MAX_LESSON_CHARS:,}")
            text = text[:MAX_LESSON_CHARS].rstrip() + " …"
        lessons.append(text)
    if most is not None and len(lessons) > most:
        notes.append(f"{len(lessons)} lessons came back, the first {most} were kept")
        lessons = lessons[:most]
    return lessons, notes


def _lessons_in(text: str) -> list[str]:
    """Return the lessons in one text: its bullets where it has several, else the whole of it."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("```")]
    found = [" ".join(lines)]
    if sum(1 for line in lines if _BULLET.match(line)) > 1:
        found = []
        for line in lines:
            if _BULLET.match(line):
                found.append(line)
            elif found:
                # A bullet that wraps goes on here; what stands before the first bullet introduces the list.
                found[-1] += " " + line
    texts = [" ".join(_printable(_BULLET.sub("", line)).split()) for line in found]
    return [text for text in texts if text.casefold().strip(".") not in _NOTHING and any(c.isalnum() for c in text)]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
