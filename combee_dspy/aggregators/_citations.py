"""Which examples a lesson comes from. Pure.

The numbers that its reader cites decide, else the nearest example.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from combee_dspy.lessons import word_vectors
from combee_dspy.records import Lesson, Reflection
from combee_dspy.reflections import texts_in

__all__ = ["NUMBER", "read_citations"]

NUMBER = "Example"
"""The field of a record that holds its number in a call, from 1."""

_BRACKET = r"[\[(]\s*(?:(?:examples?|no\.?|#)\s*)?(\d+(?:\s*(?:,|;|and|&|\s)\s*#?\d+)*)\s*[\])]"
_LEADING = re.compile(rf"^\W*?{_BRACKET}\s*[:.–-]?\s*", re.IGNORECASE)
_TRAILING = re.compile(rf"\s*{_BRACKET}\s*\.?$", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
# The dots that stand for a line in what a reader is asked: small models copy them.
_DOTS = re.compile(r"^(?:…|\.{2,3})\s*")
# What tells the subject of a record stands near its ends, and one log must not cost more than all
# lessons.
_MOST_CHARS = 4_000


def read_citations(texts: Sequence[str], items: Sequence[Reflection]) -> list[Lesson]:
    """Return the lessons in one call's texts, each with the reflections that teach it.

    Numbers outside the call are void. A text that cites no valid number comes from the reflection
    with a mistake that it shares most words with.

    Args:
        texts: What a reader wrote about the items, each with its citation before or behind it.
        items: What the call read. Number n is the item at n − 1.
    """
    lessons: list[Lesson] = []
    orphans: list[int] = []
    for text in texts:
        citation = _LEADING.match(text) or _TRAILING.search(text)
        wording = text[: citation.start()] + text[citation.end() :] if citation else text
        if not any(character.isalnum() for character in wording):
            continue
        numbers = {int(number) for number in _NUMBER.findall(citation[1])} if citation else set()
        sources = {items[number - 1].index for number in numbers if 1 <= number <= len(items)}
        if not sources:
            orphans.append(len(lessons))
        lessons.append(Lesson(_DOTS.sub("", wording.strip()), tuple(sorted(sources))))
    if orphans:
        nearest = _nearest([lessons[place].text for place in orphans], items)
        for place, index in zip(orphans, nearest, strict=True):
            lessons[place] = Lesson(lessons[place].text, (index,))
    return lessons


def _nearest(texts: Sequence[str], items: Sequence[Reflection]) -> list[int]:
    """Return for each text the reflection that shares most words with it, by index.

    Those that made a mistake come first: they are what a reader writes about.
    """
    items = [item for item in items if not item.perfect] or items
    records = [" ".join(texts_in(item.record))[:_MOST_CHARS] for item in items]
    vectors = word_vectors([*texts, *records])
    likeness = (vectors[: len(texts)] @ vectors[len(texts) :].T).toarray().round(6)
    return [items[int(row.argmax())].index for row in likeness]
