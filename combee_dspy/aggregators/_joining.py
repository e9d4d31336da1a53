"""Joining lists of lessons by code, with the sources of every lesson. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from combee_dspy.records import Lesson
from combee_dspy.reflections import NearDuplicates, normalised


def joined(lists: Iterable[Iterable[Lesson]]) -> tuple[Lesson, ...]:
    """Return all lessons in order; one that several lists hold has the sources of all of them."""
    found: dict[str, Lesson] = {}
    for lesson in (lesson for lessons in lists for lesson in lessons):
        key = normalised(lesson.text)
        known = found.get(key)
        found[key] = Lesson(known.text, _union(known, lesson)) if known else lesson
    return tuple(found.values())


def joined_near(lists: Iterable[Iterable[Lesson]], similarity: float) -> tuple[Lesson, ...]:
    """Return all lessons in order, near-duplicates as one (see :class:`combee_dspy.reflections.NearDuplicates`).

    A lesson found several times keeps its first place, takes the sources of all
    its wordings and the longest of them, which says at least as much: wordings
    that disagree in a number, a unit or a word of polarity are never one lesson.
    """
    known = NearDuplicates(similarity)
    found: dict[int, Lesson] = {}
    for lesson in (lesson for lessons in lists for lesson in lessons):
        place = known.place(lesson.text)
        same = found.get(place)
        # Of equal length, the first stays.
        found[place] = Lesson(max(same.text, lesson.text, key=len), _union(same, lesson)) if same else lesson
    return tuple(found.values())


def traced(texts: Sequence[str], lists: Iterable[Iterable[Lesson]], every: tuple[int, ...]) -> tuple[Lesson, ...]:
    """Give each text that an LM made of lists the sources of the lesson it equals, or all where it was reworded."""
    known = {normalised(lesson.text): lesson.sources for lesson in joined(lists)}
    return tuple(Lesson(text, known.get(normalised(text), every)) for text in texts)


def _union(one: Lesson, other: Lesson) -> tuple[int, ...]:
    return tuple(sorted({*one.sources, *other.sources}))
