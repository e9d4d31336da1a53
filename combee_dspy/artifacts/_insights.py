"""What an aggregator reads of a playbook's reflections, and where its lessons come from."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from combee_dspy.aggregators import parse_lessons
from combee_dspy.artifacts._reflecting import INSIGHT, SECTION, TAGS
from combee_dspy.edits import Credit
from combee_dspy.lessons import lesson_id, word_vectors
from combee_dspy.records import Lesson, Reflection

_HEADING = re.compile(r"^##.*$", re.MULTILINE)
_MARK = re.compile(r"^\[[^\s\[\]]+\] helpful=\d+ harmful=\d+ ::", re.MULTILINE)


async def extract_insight(reflection: Awaitable[Reflection | None]) -> Reflection | None:
    """Return a reflection with its key insight alone; ``None`` where it only judges bullets."""
    read = await asyncio.shield(reflection)
    if read is None or not read.record.get(INSIGHT):
        return None
    return replace(read, record={INSIGHT: read.record[INSIGHT]})


def collect_judgements(reflections: Iterable[Reflection], update: int) -> tuple[Credit, ...]:
    """Return what reflections say about the bullets that they were shown."""
    votes: dict[str, dict[str, list[str]]] = {}
    for reflection in reflections:
        for bullet, tag in reflection.record.get(TAGS, {}).items():
            votes.setdefault(bullet, {}).setdefault(tag, []).append(reflection.source(update))
    edits = (
        Credit(bullet, tuple(tags.get("helpful", ())), tuple(tags.get("harmful", ())))
        for bullet, tags in sorted(votes.items())
    )
    return tuple(edit for edit in edits if edit.helped or edit.harmed)


def lessons_in(
    rewrite: str, present: Iterable[str], reflections: Sequence[Reflection]
) -> tuple[Lesson, ...]:
    """Return the new lessons in a text that an aggregator wrote in place of a playbook.

    A playbook is never written anew by a model, so what such a text leaves out stays.
    """
    old = set(map(lesson_id, present))
    texts, _ = parse_lessons(_MARK.sub("-", _HEADING.sub("", rewrite)))
    sources = tuple(reflection.index for reflection in reflections)
    return tuple(Lesson(text, sources) for text in texts if lesson_id(text) not in old)


def file_lessons(
    lessons: Sequence[Lesson], reflections: Sequence[Reflection]
) -> tuple[Lesson, ...]:
    """Return lessons with the reflections that teach them, and the section of the nearest.

    A reflection holds one insight, so it teaches one lesson: of those that name it as a source, the
    one that it shares most words with. Every lesson keeps the source that it is most like.
    """
    read = [reflection for reflection in reflections if reflection.record.get(INSIGHT)]
    if not lessons or not read:
        return tuple(lessons)
    insights = [str(reflection.record[INSIGHT]) for reflection in read]
    vectors = word_vectors([*(lesson.text for lesson in lessons), *insights])
    likeness = (vectors[: len(lessons)] @ vectors[len(lessons) :].T).toarray().round(6)
    named = np.array([[item.index in lesson.sources for item in read] for lesson in lessons])
    likeness[~named] = -1.0
    # By lesson and reflection: whether the reflection teaches this one.
    teaches = (likeness > 0) & (np.arange(len(lessons))[:, None] == likeness.argmax(axis=0))
    filed: list[Lesson] = []
    for lesson, near, taught_by in zip(lessons, likeness, teaches, strict=True):
        nearest = int(near.argmax())
        if near[nearest] >= 0:
            places = {nearest, *np.flatnonzero(taught_by).tolist()}
            sources = tuple(sorted({read[place].index for place in places}))
            section = str(read[nearest].record.get(SECTION, ""))
            lesson = replace(lesson, sources=sources, section=section)
        filed.append(lesson)
    return tuple(filed)
