"""What a lesson is about, by its rare words. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from combee_dspy.texts import normalised

__all__ = ["Vocabulary", "subject_words", "word_likeness"]

# A word that more lessons hold, and more than so large a share of them, tells no subject.
_FEW, _COMMON = 6, 0.2
# A word that a larger share of the examples holds tells nothing about any of them.
_USUAL = 0.5
# Other forms of a word begin like it.
_STEM = 5
# Lessons about anything hold them.
_FUNCTION_TEXT = """
    a about after all also always an and any are as at be been before both but by can do does
    each even every everything for from give given has have how if in into is it its make may
    more most must never no not of on only or other out over same should so some such than that
    the their them then there these they thing this those to under until up use used when where
    whether which while who whose why will with would you your answer answers question
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_TEXT.split())


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How many of a book's lessons hold each word: a word that tells a subject is rare.

    A word counts by its beginning, since its other forms share that. Lessons that hold the same
    words of the examples count once: else what many wordings of a lesson share would be common, and
    the words around it rare.

    Attributes:
        lessons: How many lessons there are.
        holders: How many hold a word, by its beginning.
        examples: The words of the examples that lessons were read from.
    """

    lessons: int
    holders: Mapping[str, int]
    examples: frozenset[str] = frozenset()

    @classmethod
    def of(cls, texts: Iterable[str], examples: Iterable[str] = ()) -> Vocabulary:
        """Return the vocabulary of some lessons, with the texts of the examples behind them."""
        read = [subject_words(text) for text in examples]
        counts = Counter(word for words in read for word in words)
        most = max(1.0, _USUAL * len(read))
        rare = frozenset(word for word, count in counts.items() if count <= most)
        distinct: dict[object, set[str]] = {}
        for number, text in enumerate(texts):
            words = subject_words(text)
            own = frozenset(words & rare)
            distinct.setdefault(own if len(own) > 1 else number, set()).update(words)
        holders = Counter(word for words in distinct.values() for word in words)
        return cls(len(distinct), holders, rare)

    def subject(self, text: str) -> dict[str, float]:
        """Return the weight of each word of a lesson that tells its subject."""
        most = max(_FEW, _COMMON * self.lessons)
        counts = {word: self.holders.get(word, 1) for word in subject_words(text)}
        return {
            word: math.log(1 + self.lessons / count) ** 2
            for word, count in counts.items()
            if count <= most
        }

    def rarest(self, text: str) -> frozenset[str]:
        """Return the two rarest words of a lesson, and those that are as rare as the second.

        Where two or more are words of the examples, the others are only how the lesson is put.
        """
        subject = self.subject(text)
        own = subject.keys() & self.examples
        weights = {word: subject[word] for word in own} if len(own) > 1 else subject
        least = min(sorted(weights.values())[-2:], default=0.0)
        return frozenset(word for word, weight in weights.items() if weight >= least)


def word_likeness(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return the cosine of two subjects, 0 to 1."""
    shared = sum(first[word] ** 2 for word in first.keys() & second.keys())
    return shared / (math.hypot(*first.values()) * math.hypot(*second.values()) or 1.0)


def subject_words(text: str) -> set[str]:
    """Return the beginnings of the words that may tell a subject."""
    return {word[:_STEM] for word in normalised(text).split() if word not in _FUNCTION_WORDS}
