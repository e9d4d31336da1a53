"""Which examples ask for something else than a lesson says, by their words. Pure.

A reader that blames the wrong word of an example writes a line that hardly any other example bears
out. No reader contradicts it, since nobody writes a line about a word that decides nothing. The
examples do: those that hold the word, and whose answer is another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.aggregators._rulings import Rulings, agree
from combee_dspy.edits import Credit
from combee_dspy.lessons import BookLesson, certainty
from combee_dspy.records import Reflection

# How sure the examples must make it that a lesson is wrong: what decides a contradiction too.
_CLEAR = 0.95
# Lessons that so many examples teach tell whether the words of examples can be trusted.
_TAUGHT = 3
# Where so large a share of what is taught is opposed, an example asks for several things at once.
_MOST_OPPOSED = 0.5
# The latest examples that are looked at.
_EXAMPLES = 500


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a lesson says, and what it is about."""

    lesson: BookLesson
    about: frozenset[str]
    wanted: frozenset[str]


def find_opposed(
    lessons: Iterable[BookLesson], examples: Sequence[Reflection]
) -> tuple[Credit, ...]:
    """Return the examples that speak against lessons which they make clearly wrong.

    An example speaks against a lesson if it holds all that the lesson is about and asks for another
    answer, unless an exception says so. A lesson is clearly wrong by the posterior of the examples
    on both sides. No lesson is, where examples speak against those that several teach: one answer
    may then be made of several choices, of which feedback names one.
    """
    read = [item for item in examples[-_EXAMPLES:] if item.example_id]
    rulings = Rulings.of(read)
    rows = {item.example_id or "": rulings.of_example(item) for item in read}
    wanted = {example: ruling for example, ruling in rows.items() if ruling[1]}
    claims = [
        _Claim(lesson, *ruling)
        for lesson in lessons
        # An exception that a test served, or the user, is one too.
        if (lesson.state == "served" or not lesson.decided)
        and all(ruling := rulings.of_lesson(lesson.text))
    ]
    opposed = {claim.lesson.id: _oppose(claim, claims, wanted) for claim in claims}
    taught = [claim.lesson for claim in claims if len(claim.lesson.sources) >= _TAUGHT]
    sources = sum(len(lesson.sources) for lesson in taught)
    against = sum(len(opposed[lesson.id]) for lesson in taught)
    if not taught or against > _MOST_OPPOSED * sources:
        return ()
    return tuple(
        Credit(claim.lesson.id, harmed=tuple(sorted(harmed)))
        for claim in claims
        if not claim.lesson.decided
        and (harmed := opposed[claim.lesson.id])
        and certainty(len(harmed), claim.lesson.helpful) >= _CLEAR
    )


def _oppose(
    claim: _Claim,
    claims: Sequence[_Claim],
    wanted: Mapping[str, tuple[frozenset[str], frozenset[str]]],
) -> set[str]:
    """Return the examples that hold what a claim is about, and ask for something else."""
    exceptions = [other for other in claims if claim.about < other.about]
    return {
        example
        for example, (about, choice) in wanted.items()
        if claim.about <= about
        and not agree(choice, claim.wanted)
        and example not in claim.lesson.sources
        and not any(other.about <= about and agree(choice, other.wanted) for other in exceptions)
    }
