"""Lists of lessons: read out of an LM's answer, and joined with their sources. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain

from combee_dspy.records import Lesson
from combee_dspy.reflections import NearDuplicates, normalised

MAX_LESSON_CHARS = 1_200
"""A lesson is one or two sentences; a formula with its conditions may need more. What is longer is
cut and reported.
"""

_BULLET = re.compile(r"^(?:[-*•–]|\(?\d{1,3}[.)])\s+")
# A number of its own before a lesson, as in "Rule 3: " or "**3** – "; not as in "1.5" or "1-year".
_LABEL = re.compile(
    r"^(?![\[(])\W*(?:([^\W\d]+)\W*)?(\d{1,3})\W*[.:)–—-](?!\w)\W*?(?=([\[(]\W*\d)|[\[(\w])"
)
_LABEL_CHARS = 40
# Other words before numbers name things, as "Tier 1" does, unless numbers in brackets follow.
_LABELS = frozenset({"example", "guideline", "item", "lesson", "line", "no", "point", "rule"})
# A question belongs to its answer, and what points back to what it points at.
_BACK = "also|but|else|if (?:not|so)|it|otherwise|so|that|then|these|they|this|those"
_SENTENCE = re.compile(
    rf"(?<=[.!])\s+(?=[\W\d]*[^\W\d_a-zß-ÿ])(?!(?i:{_BACK})\b)|(?<=[。！])\s*(?=\S)"
)
_NOTHING = frozenset({"none", "n/a", "null", "no lessons", "no new lessons"})


def parse_lessons(value: object, most: int | None = None) -> tuple[list[str], list[str]]:
    """Return the lessons in an LM's answer, cleaned, and what had to be changed.

    The answer is hostile until then.

    Bullets and numbering are removed, white space is made single, empty items and repeated ones are
    dropped. An item that holds several bullets becomes one lesson for each. What is neither a list
    of texts nor a text holds no lessons.

    Returns:
        The lessons, ``most`` of them at most, and one sentence for each cut that lost text.
    """
    items = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    distinct: dict[str, str] = {}
    texts = chain.from_iterable(_lessons_in(item) for item in items if isinstance(item, str))
    for text in _unlabelled(list(texts)):
        distinct.setdefault(normalised(text), text)
    lessons = list(distinct.values())
    notes: list[str] = []
    for place, text in enumerate(lessons):
        if len(text) > MAX_LESSON_CHARS:
            notes.append(f"a lesson of {len(text):,} characters was cut to {MAX_LESSON_CHARS:,}")
            lessons[place] = text[:MAX_LESSON_CHARS].rstrip() + " …"
    if most is not None and len(lessons) > most:
        notes.append(f"{len(lessons)} lessons came back, the first {most} were kept")
    return lessons[:most], notes


def _lessons_in(text: str) -> list[str]:
    """Return the lessons in one text: its bullets where it has several, else the whole of it."""
    lines = [
        line for line in map(str.strip, text.splitlines()) if line and not line.startswith("```")
    ]
    items = [" ".join(lines)]
    if sum(1 for line in lines if _BULLET.match(line)) > 1:
        items = []
        for line in lines:
            if _BULLET.match(line):
                items.append(line)
            elif items:
                # A bullet that wraps goes on here; a line before the first bullet introduces the
                # list.
                items[-1] += " " + line
    texts = [" ".join(_printable(_BULLET.sub("", line)).split()) for line in items]
    return [
        text
        for text in texts
        if text.casefold().strip(".") not in _NOTHING and any(c.isalnum() for c in text)
    ]


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return _SENTENCE.split(text)


def _unlabelled(texts: list[str]) -> list[str]:
    """Return texts without their labels, where all are numbered from 1 behind the same word."""
    # A label is short, and a long run of marks would cost time.
    labels = [label for text in texts if (label := _LABEL.match(text[:_LABEL_CHARS]))]
    numbers = [(label[1], int(label[2])) for label in labels]
    if not labels or numbers != [(labels[0][1], number) for number in range(1, len(texts) + 1)]:
        return texts
    word = labels[0][1]
    is_label = word.casefold() in _LABELS if word else len(texts) > 1
    if not is_label and not any(label[3] for label in labels):
        return texts
    return [text[label.end() :] for text, label in zip(texts, labels, strict=True)]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def join_lessons(
    lists: Iterable[Iterable[Lesson]], similarity: float | None = None
) -> tuple[Lesson, ...]:
    """Return all lessons in order, each once, with the sources of all lists that hold it.

    With a ``similarity``, near-duplicates are one lesson too (see
    :class:`combee_dspy.reflections.NearDuplicates`), which takes the longest of its wordings: it
    says at least as much, since wordings that disagree in a number, a unit or a word of polarity
    are never one lesson.
    """
    place: Callable[[str], str | int] = (
        normalised if similarity is None else NearDuplicates(similarity).place
    )
    lessons: dict[str | int, Lesson] = {}
    for lesson in chain.from_iterable(lists):
        key = place(lesson.text)
        same = lessons.get(key, lesson)
        # Of equal length, the first stays.
        text = same.text if similarity is None else max(same.text, lesson.text, key=len)
        lessons[key] = Lesson(text, tuple(sorted({*same.sources, *lesson.sources})))
    return tuple(lessons.values())
