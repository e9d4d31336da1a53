"""How lessons relate by the words of examples, where no reader says it. Pure.

A row of a choice names its right answer in the feedback. What such a lesson is about stands in the
inputs, and what it asks for in the feedback alone. So two lessons on one subject that ask for other
answers contradict each other, whatever form of words they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from combee_dspy.aggregators._citations import ends
from combee_dspy.records import Reflection
from combee_dspy.reflections import feedback_text, normalised, subject_words, texts_in

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
