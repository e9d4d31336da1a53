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

    A word counts by its beginning, since its other forms share that.

    Attributes:
        lessons: How many lessons there are.
        holders: How many hold a word, by its beginning.
    """

    lessons: int
    holders: Mapping[str, int]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of some lessons."""
        words = [subject_words(text) for text in texts]
        return cls(len(words), Counter(word for each in words for word in each))

    def subject(self, text: str) -> dict[str, float]:
        """Return the weight of each word of a lesson that tells its subject."""
        most = max(_FEW, _COMMON * self.lessons)
        counts = {word: self.holders.get(word, 1) for word in subject_words(text)}
        return {
            word: math.log(1 + self.lessons / count) ** 2
            for word, count in counts.items()
            if count <= most
        }


def word_likeness(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return the cosine of two subjects, 0 to 1."""
    shared = sum(first[word] ** 2 for word in first.keys() & second.keys())
    return shared / (math.hypot(*first.values()) * math.hypot(*second.values()) or 1.0)


def subject_words(text: str) -> set[str]:
    """Return the beginnings of the words that may tell a subject."""
    return {word[:_STEM] for word in normalised(text).split() if word not in _FUNCTION_WORDS}
