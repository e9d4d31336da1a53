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

from combee_dspy.lessons import BookEdit, BookLesson, Contradict, Narrow, Unite
from combee_dspy.records import Reflection
from combee_dspy.reflections import feedback_text, normalised, subject_words, texts_in

__all__ = ["Rulings"]

# Feedback with more words of its own than these explains, and names no choice.
_ANSWER_WORDS = 2
# A word that a larger part of the examples holds tells neither a subject nor an answer.
_COMMON = 0.5

_Ruling = tuple[frozenset[str], frozenset[str]]
"""What a lesson is about, and which answers it asks for."""


@dataclass(frozen=True, slots=True)
class Rulings:
    """The words of examples that tell what a lesson is about, and what it asks for.

    Attributes:
        subjects: Words of the inputs.
        answers: Words that the feedback on a mistake has, and the rest of its record has not.
    """

    subjects: frozenset[str]
    answers: frozenset[str]

    @classmethod
    def of(cls, reflections: Iterable[Reflection]) -> Rulings:
        """Return what examples tell; nothing where feedback explains in sentences."""
        read = list(reflections)
        inputs = [list(texts_in(item.record.get("Inputs"))) for item in read]
        subjects = Counter(word for texts in inputs for word in subject_words(" ".join(texts)))
        comments = {
            place: _words([feedback_text(item)])
            for place, item in enumerate(read)
            if not item.perfect
        }
        holders = Counter(word for words in comments.values() for word in words)
        answers: set[str] = set()
        for place, words in comments.items():
            other = _words((*inputs[place], *texts_in(read[place].record.get("Generated Outputs"))))
            own = {word for word in words - other if _is_rare(holders[word], len(comments))}
            answers |= own if len(own) <= _ANSWER_WORDS else set()
        rare = (word for word, count in subjects.items() if _is_rare(count, len(read)))
        return cls(frozenset(rare), frozenset(answers))

    def edits(self, lessons: Sequence[BookLesson]) -> tuple[BookEdit, ...]:
        """Return which lessons are the same, contradict each other, or are exceptions.

        Those that ask for other answers contradict each other where they are about the same. One
        that is about the same and more is an exception.
        """
        same: dict[_Ruling, list[str]] = {}
        for lesson in lessons:
            about, asked = self._ruling(lesson.text)
            if about and asked:
                same.setdefault((about, asked), []).append(lesson.id)
        edits: list[BookEdit] = [Unite(tuple(ids)) for ids in same.values() if len(ids) > 1]
        for (ruling, (first, *_)), (other, (second, *_)) in combinations(same.items(), 2):
            (about, asked), (subject, wanted) = ruling, other
            if asked <= wanted or wanted <= asked:
                continue
            if about == subject:
                edits.append(Contradict((first, second)))
            elif about < subject:
                edits.append(Narrow(second, first))
            elif subject < about:
                edits.append(Narrow(first, second))
        return tuple(edits)

    def _ruling(self, text: str) -> _Ruling:
        asked = self.answers & _words([text])
        return frozenset(self.subjects & subject_words(text) - asked), frozenset(asked)


def _is_rare(holders: int, examples: int) -> bool:
    return holders <= max(1, _COMMON * examples)


def _words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in normalised(text).split()}
