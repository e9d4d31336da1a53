"""How lessons relate, and which are wrong, by the words of examples. Pure.

A row of a choice names its right answer in the feedback. What such a lesson is about stands in the
inputs, and what it asks for in the feedback alone. So two lessons on one subject that ask for other
answers contradict each other, whatever form of words they have, where no reader says it.

A reader that blames the wrong word of an example writes a line that hardly any other example bears
out. No reader contradicts it, since nobody writes a line about a word that decides nothing. The
examples do: those that hold the word, and whose answer is another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from combee_dspy.edits import Credit
from combee_dspy.lessons import BookLesson, certainty
from combee_dspy.records import Reflection
from combee_dspy.reflections import ends, feedback_text, normalised, subject_words, texts_in

# Feedback with more words of its own than these explains, and names no choice.
_ANSWER_WORDS = 2
# A word that a larger part of the examples holds tells neither a subject nor an answer.
_COMMON = 0.5
# A choice comes again: so large a part of the mistakes share theirs with others. Else each has an
# answer of its own, as numbers are, and a lesson that holds one of them asks for something else.
_REPEATED = 0.5
# What turns a lesson round, or bounds it: such a lesson may agree with one that asks otherwise.
_TURNING_TEXT = """
    no not never none nor neither without cannot cant dont doesnt isnt arent wont shouldnt mustnt
    avoid only except unless instead rather otherwise before after until more less most least than
    higher lower larger smaller nicht kein keine keinen nie ohne ausser pas jamais sans sauf
    不 没 非 除
"""
_TURNING = frozenset(_TURNING_TEXT.split())

Ruling = tuple[frozenset[str], frozenset[str]]
"""What a lesson is about, and which answer it asks for."""


@dataclass(frozen=True, slots=True)
class Rulings:
    """The words of examples that tell what a lesson is about, and what it asks for.

    Attributes:
        subjects: Beginnings of words of the inputs.
        choices: Answers, each as its words: those that the feedback on a mistake has, and the rest
            of its record has not.
    """

    subjects: frozenset[str]
    choices: frozenset[frozenset[str]]

    @classmethod
    def of(cls, reflections: Iterable[Reflection]) -> Rulings:
        """Return what examples tell; no choices where feedback explains, or hardly one repeats."""
        read = list(reflections)
        inputs = [ends(" ".join(texts_in(item.record.get("Inputs")))) for item in read]
        subjects = Counter(word for text in inputs for word in subject_words(text))
        comments = {
            place: _words(ends(feedback_text(item)))
            for place, item in enumerate(read)
            if not item.perfect
        }
        holders = Counter(word for words in comments.values() for word in words)
        choices: Counter[frozenset[str]] = Counter()
        for place, words in comments.items():
            outputs = " ".join(texts_in(read[place].record.get("Generated Outputs")))
            other = _words(f"{inputs[place]} {ends(outputs)}")
            own = {word for word in words - other if _is_rare(holders[word], len(comments))}
            # The article "a" is no answer.
            if own and len(own) <= _ANSWER_WORDS and all(map(subject_words, own)):
                choices[frozenset(own)] += 1
        repeated = sum(count for count in choices.values() if count > 1)
        if repeated < _REPEATED * len(comments):
            choices.clear()
        rare = (word for word, count in subjects.items() if _is_rare(count, len(read)))
        return cls(frozenset(rare), frozenset(choices))

    def relate(self, texts: Sequence[str]) -> dict[str, list[list[int]]]:
        """Return, as a reader would, which lessons are the same, contradictory, or exceptions.

        Those that ask for other answers contradict each other where they are about the same. One
        that is about the same and more is an exception.
        """
        same: dict[Ruling, list[int]] = {}
        for number, text in enumerate(texts, start=1):
            about, asked = self.of_lesson(text)
            if about and asked in self.choices:
                same.setdefault((about, asked), []).append(number)
        opposed: list[list[int]] = []
        narrower: list[list[int]] = []
        for (ruling, (first, *_)), (other, (second, *_)) in combinations(same.items(), 2):
            (about, asked), (subject, wanted) = ruling, other
            if agree(asked, wanted):
                continue
            if about == subject:
                opposed.append([first, second])
            elif about < subject:
                narrower.append([second, first])
            elif subject < about:
                narrower.append([first, second])
        groups = [numbers for numbers in same.values() if len(numbers) > 1]
        return {"same": groups, "contradictory": opposed, "narrower": narrower}

    def of_lesson(self, text: str) -> Ruling:
        """Return what a text rules; nothing where a word or a number may turn or bound it."""
        words = _words(text)
        asked = words & frozenset().union(*self.choices)
        subject = subject_words(" ".join(words - asked))
        if words & _TURNING or any(map(str.isdigit, "".join(subject))):
            return frozenset(), frozenset()
        return frozenset(subject & self.subjects), frozenset(asked)

    def of_example(self, item: Reflection) -> Ruling:
        """Return what an example is about, and its answer; none where it names several."""
        inputs = ends(" ".join(texts_in(item.record.get("Inputs"))))
        words = _words(ends(" ".join(texts_in(item.record.get("Generated Outputs")))))
        if not item.perfect:
            words = _words(ends(feedback_text(item))) - words
        choices = {choice for choice in self.choices if choice <= words - _words(inputs)}
        answer = choices.pop() if len(choices) == 1 else frozenset[str]()
        return frozenset(subject_words(inputs) & self.subjects), answer


def agree(asked: frozenset[str], wanted: frozenset[str]) -> bool:
    """Return whether two answers may be the same: one may be a part of the other's name, or one of
    several that it names.
    """
    return asked <= wanted or wanted <= asked


def _is_rare(holders: int, examples: int) -> bool:
    return holders <= max(1, _COMMON * examples)


def _words(text: str) -> set[str]:
    return set(normalised(text).split())


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
