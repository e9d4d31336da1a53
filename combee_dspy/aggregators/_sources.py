"""Which examples teach a lesson, by the words of both. Pure.

Readers are not asked: a small model that is to cite its examples writes citations and no lesson.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from combee_dspy.aggregators._lessons import sentences
from combee_dspy.aggregators._retention import feedback_words
from combee_dspy.lessons import word_vectors
from combee_dspy.records import Lesson, Reflection
from combee_dspy.reflections import example_text, normalised

# An example teaches the lesson that shares most words with it, and those that share nearly as many,
# where the lesson shares with it nearly as much as with any example.
_NEARLY = 0.8
# A lesson comes from right answers where one holds so many times as much of it as any mistake.
_FAR_MORE = 2.0
# Part of a call's lessons that say what feedback says, from which on the others are doubtful.
_SAID = 0.5
# Sentences of a lone text, and mistakes of its call, from which on it is no single lesson.
_SEVERAL = 3


def find_sources(texts: Sequence[str], items: Sequence[Reflection]) -> list[Lesson]:
    """Return the lessons in one call's texts, each with the reflections that teach it.

    These are mistakes, since a reader writes about them: those that the lesson is nearest to, else
    the nearest. It comes from a right answer only where that shares far more with it; as much is
    enough where other lessons say what feedback says, and it does not. A lone text that says
    several things to a call with several mistakes is read as its sentences.

    Args:
        texts: What a reader wrote about the items.
        items: What the call read, at least one.
    """
    lessons = _divide(texts, items)
    if not lessons:
        return []
    vectors = word_vectors([*lessons, *map(example_text, items)])
    written, holders = vectors[: len(lessons)], vectors[len(lessons) :]
    near = (written @ holders.T).toarray().round(6)
    # The share of a lesson's words, by weight: a record may be long.
    shared = (written.multiply(written) @ (holders > 0).T).toarray().round(6)
    is_wrong = np.array([not item.perfect for item in items])
    is_taught = is_wrong & (near >= _NEARLY * near.max(axis=0)) & (near > 0)
    is_taught &= shared >= _NEARLY * shared.max(axis=1, keepdims=True)
    # Where lessons say what feedback on mistakes says, another is as likely to come from a right
    # answer.
    feedback = {word for item in items if not item.perfect for word in feedback_words(item)}
    is_said = np.array([not feedback.isdisjoint(normalised(text).split()) for text in lessons])
    more = np.where(is_said | (is_said.mean() < _SAID), _FAR_MORE, 1.0)
    right = shared.max(axis=1, where=~is_wrong, initial=0.0)
    is_right = (right > 0) & (right >= more * shared.max(axis=1, where=is_wrong, initial=0.0))
    is_taught &= ~is_right[:, None]
    nearest = np.where(is_right[:, None] ^ is_wrong, near, -1.0).argmax(axis=1)
    is_taught[np.arange(len(lessons)), nearest] |= ~is_taught.any(axis=1)
    return [
        Lesson(text, tuple(sorted({items[place].index for place in np.flatnonzero(row).tolist()})))
        for text, row in zip(lessons, is_taught, strict=True)
    ]


def _divide(texts: Sequence[str], items: Sequence[Reflection]) -> list[str]:
    """Return texts that say something; the sentences of a lone one about several mistakes."""
    lessons = _worded(texts)
    parts = _worded(sentences(lessons[0])) if len(lessons) == 1 else []
    mistakes = sum(not item.perfect for item in items)
    return lessons if min(mistakes, len(parts)) < _SEVERAL else parts


def _worded(texts: Iterable[str]) -> list[str]:
    return [text.strip() for text in texts if any(map(str.isalnum, text))]
