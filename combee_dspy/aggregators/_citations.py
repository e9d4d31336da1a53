"""Which examples a lesson comes from. Pure.

The numbers that its reader cites decide where its words allow it, else the nearest example.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from combee_dspy.aggregators._lessons import sentences
from combee_dspy.lessons import word_vectors
from combee_dspy.records import Lesson, Reflection
from combee_dspy.reflections import ends, texts_in

NUMBER = "Example"
"""The field of a record that holds its number in a call, from 1."""

_WORD = r"(?:examples?|no\.?|#)"
_SEVERAL_NUMBERS = rf"(?:{_WORD}\s*)?\d+(?:\s*(?:,|;|and|&|\s)\s*(?:{_WORD}\s*)?\d+)*"
_BRACKET = rf"[\[(]\s*({_SEVERAL_NUMBERS})\s*[\])]"
_LEADING = re.compile(rf"^\W*?{_BRACKET}\s*[:.–-]?\s*", re.IGNORECASE)
_TRAILING = re.compile(rf"\s*{_BRACKET}[\s.,;:\"'*]*$", re.IGNORECASE)
_WITHIN = re.compile(rf"(?<=\s){_BRACKET}\.?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
# What is left of a citation within which an answer was cut.
_CUT = re.compile(rf"(?:^\W*[\[(]|\s*\[)(?:[\s\d,;&]|and|{_WORD})*$", re.IGNORECASE)
# The prompt writes dots for a line, and small models copy them.
_DOTS = re.compile(r"^(?:…|\.{2,3})\s*")
# A cited example shares this part, at least, of what the example that shares most does: small
# models number their lines in the place of citing.
_LEAST_SHARED = 0.25
# A text without a citation comes from right answers where one holds so many times as much of it as
# any mistake.
_FAR_MORE = 2.0
# Sentences of a lone text, and mistakes of its call, from which on it is no single lesson; examples
# that all texts of an answer cite, from which on that tells nothing of any.
_SEVERAL = 3


def read_citations(texts: Sequence[str], items: Sequence[Reflection]) -> list[Lesson]:
    """Return the lessons in one call's texts, each with the reflections that teach it.

    Numbers outside the call are void, and so are those of examples that share hardly a word with
    the text where another one does, and of the same many examples behind every text. Where no
    citation is left, a text comes from the reflection that it shares most words with; where it
    cites no valid number, from such a mistake, unless a right answer shares far more. A lone text
    that says several things to a call with several mistakes is read as its sentences.

    Args:
        texts: What a reader wrote about the items, each with its citation before or behind it.
        items: What the call read. Number n is the item at n − 1.
    """
    return check_citations(split_citations(texts, items), items)


def split_citations(texts: Sequence[str], items: Sequence[Reflection]) -> list[Lesson]:
    """Return the lessons in one call's texts, each with the reflections that its text cites."""
    lessons: list[Lesson] = []
    for text in _divide(texts, items):
        wording, numbers = _split(_CUT.sub("", text), len(items))
        if not any(map(str.isalnum, wording)):
            continue
        sources = {items[number - 1].index for number in numbers if 1 <= number <= len(items)}
        lessons.append(Lesson(_DOTS.sub("", wording.strip(" ,;")), tuple(sorted(sources))))
    return lessons


def _split(text: str, most: int) -> tuple[str, list[int]]:
    """Return a text without the citations before and behind it, and the numbers of the one that
    counts: the last, since what stands before it often numbers the lessons.

    A number in round brackets behind a text is part of it where a call reads fewer examples, as a
    year is.
    """
    leading, trailing = _LEADING.match(text), _TRAILING.search(text)
    if trailing and "(" in trailing[0] and not _is_within(trailing, most):
        trailing = None
    wording = text[leading.end() if leading else 0 : trailing.start() if trailing else len(text)]
    citation = trailing or leading
    return wording, _numbers(citation) if citation else []


def _numbers(citation: re.Match[str]) -> list[int]:
    return [int(number) for number in _NUMBER.findall(citation[1])]


def _is_within(citation: re.Match[str], most: int) -> bool:
    return all(1 <= number <= most for number in _numbers(citation))


def _divide(texts: Sequence[str], items: Sequence[Reflection]) -> list[str]:
    """Return texts; the parts of a lone one that speaks of several mistakes at once.

    Parts are what its citations divide, else its sentences, which all have its citation. A text
    that cites few examples is one lesson, and so is one about few mistakes.
    """
    if len(texts) != 1:
        return list(texts)
    if len(parts := _between_citations(texts[0], len(items))) > 1:
        return parts
    wording, numbers = _split(texts[0], len(items))
    parts = sentences(wording)
    mistakes = sum(not item.perfect for item in items)
    if 0 < len(numbers) < _SEVERAL or min(mistakes, len(parts)) < _SEVERAL:
        return list(texts)
    return [f"[{', '.join(map(str, numbers))}] {part}" if numbers else part for part in parts]


def _between_citations(text: str, most: int) -> list[str]:
    """Return what the citations of a text divide it into, each part with its own.

    A text that divides so begins or ends with one: other numbers in brackets name options or
    steps. So do brackets of another kind, and what is above ``most``.
    """
    before, behind = _LEADING.match(text), _TRAILING.search(text)
    edge = before or behind
    places = [
        match.start() if before else match.end()
        for match in _WITHIN.finditer(text)
        if edge and match[0][0] in edge[0] and _is_within(match, most)
    ]
    parts = [text[start:end].strip() for start, end in pairwise([0, *places, len(text)])]
    return [part for part in parts if any(map(str.isalnum, _LEADING.sub("", part)))]


def _void_shared(lessons: Sequence[Lesson]) -> Sequence[Lesson]:
    """Return lessons; without citations where all cite the same many examples."""
    cited = {lesson.sources for lesson in lessons}
    is_void = len(lessons) > 1 == len(cited) and len(*cited) >= max(_SEVERAL, len(lessons))
    return [Lesson(lesson.text) for lesson in lessons] if is_void else lessons


def check_citations(lessons: Sequence[Lesson], items: Sequence[Reflection]) -> list[Lesson]:
    """Return lessons with the sources that their words allow; with the nearest where none is left.

    Mistakes come first where a reader cites nothing: they are what it writes about. Costs as much
    as all else that is done with an answer.
    """
    if not lessons or not items:
        return list(lessons)
    lessons = _void_shared(lessons)
    records = (ends(" ".join(texts_in(item.record))) for item in items)
    vectors = word_vectors([*(lesson.text for lesson in lessons), *records])
    texts, holders = vectors[: len(lessons)], vectors[len(lessons) :]
    likeness = (texts @ holders.T).toarray().round(6)
    # The share of a lesson's words, by weight: a record may be long.
    shared = (texts.multiply(texts) @ (holders > 0).T).toarray().round(6)
    mistakes = [place for place, item in enumerate(items) if not item.perfect]
    checked: list[Lesson] = []
    for lesson, near, parts in zip(lessons, likeness, shared, strict=True):
        most = parts.max()
        allowed = {
            item.index
            for item, part in zip(items, parts, strict=True)
            if part >= _LEAST_SHARED * most
        }
        sources = tuple(source for source in lesson.sources if source in allowed)
        if not sources:
            # A void citation must not turn what right answers teach into what a mistake teaches.
            every = range(len(items))
            written_about = max((parts[place] for place in mistakes), default=0.0)
            is_right = most >= _FAR_MORE * written_about
            places = every if lesson.sources or is_right else mistakes
            sources = (items[max(places, key=near.__getitem__)].index,)
        checked.append(Lesson(lesson.text, sources))
    return checked
