"""Makes one lesson of several that say the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from combee_dspy.lessons._records import BookLesson, Decision
from combee_dspy.texts import numbers_in


def why_apart(members: Sequence[BookLesson]) -> str:
    """Return why lessons cannot be one; the empty text where they can."""
    own = [lesson for lesson in members if lesson.own]
    if len(own) > 1 or (own and any(lesson.state == "removed_by_user" for lesson in members)):
        return f"{quoted(own[0])} is the user's own"
    texts = [text for lesson in members for text in (lesson.text, *lesson.texts)]
    numbered = [(text, numbers_in(text)) for text in texts]
    for (text, numbers), (other, rest) in combinations(numbered, 2):
        # A number decides what a lesson says, as in "two decimals" or "code 7".
        if not (numbers <= rest or rest <= numbers):
            return f"numbers differ in {text[:60]!r} and {other[:60]!r}"
    ids = {lesson.id for lesson in members}
    if any(not ids.isdisjoint(lesson.rivals) for lesson in members):
        return f"{quoted([*own, *members][0])} contradicts one of the others"
    return ""


def united_lesson(members: Sequence[BookLesson], oldest: BookLesson, rule: str) -> BookLesson:
    """Return one lesson with the evidence of several, an exception to a rule if that is named.

    A line of the user's own stays as it is. Else the first wording is served, and what was decided
    of one member holds for all.
    """
    own = [lesson for lesson in members if lesson.own]
    removed = [lesson for lesson in members if lesson.state == "removed_by_user"]
    decided = [lesson for lesson in members if lesson.decided]
    settled = [*own, *removed, *decided, oldest][0]
    decisions = [
        lesson.decision
        for lesson in members
        if lesson.decision and lesson.state == settled.state and not own
    ]
    rows, cited = (sum(each.rows for each in decisions), sum(each.cited for each in decisions))
    text = [*own, *members][0].text
    texts = dict.fromkeys(text for lesson in members for text in (lesson.text, *lesson.texts))
    wordings = dict.fromkeys(
        wording for lesson in (oldest, *members) for wording in lesson.wordings
    )
    sources = distinct(source for lesson in members for source in lesson.sources)
    against = distinct(example for lesson in members for example in lesson.against)
    return replace(
        settled,
        id=oldest.id,
        decision=Decision(rows, cited) if decisions else None,
        text=text,
        sources=sources,
        against=without(against, sources),
        helped=sum(lesson.helped for lesson in members),
        harmed=sum(lesson.harmed for lesson in members),
        section=next((lesson.section for lesson in members if lesson.section), ""),
        born=min(lesson.born for lesson in members),
        rule=rule,
        rivals=distinct(rival for lesson in members for rival in lesson.rivals),
        wordings=tuple(wordings),
        texts=without(texts, [text]),
        worded=max(lesson.worded for lesson in members),
    )


def quoted(lesson: BookLesson) -> str:
    """Return the beginning of a lesson's text, in quotation marks."""
    return repr(lesson.text[:60])


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Return names, each once, ascending."""
    return tuple(sorted(set(names)))


def without(names: Iterable[str], left_out: Iterable[str]) -> tuple[str, ...]:
    """Return names in their order, without those that are left out."""
    gone = set(left_out)
    return tuple(name for name in names if name not in gone)
