"""Which lessons say what the prompt says, and nothing of their examples. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from combee_dspy.aggregators._unread import feedback_words, telling_words
from combee_dspy.lessons import read_section
from combee_dspy.records import Lesson, Reflection
from combee_dspy.reflections import PARAPHRASE, Vocabulary, subject_words, word_likeness
from combee_dspy.texts import numbers_in, polarity_in

__all__ = ["PromptLines"]

# A word that more lines hold, and more than so large a share, belongs to the way they are worded.
_FEW, _COMMON = 2, 0.1


class PromptLines:
    """The lessons in a prompt, told apart from what its examples teach.

    Args:
        text: The prompt that readers see.
        items: What all calls of an update read.
    """

    def __init__(self, text: str, items: Iterable[Reflection]) -> None:
        self._lines = read_section(text)[1]
        mistakes = {item.index: item for item in items if not item.perfect}
        rare = telling_words(mistakes.values()) if self._lines else {}
        holders = Counter(word for line in self._lines for word in subject_words(line))
        most = max(_FEW, _COMMON * len(self._lines))
        common = {word for word, count in holders.items() if count > most}
        # Feedback that is alone, or says what all say, is told by all of its words.
        self._telling = {
            index: subject_words(" ".join(words or feedback_words(mistakes[index]))) - common
            for index, words in rare.items()
        }

    def find_repeats(self, lessons: Sequence[Lesson]) -> list[Lesson]:
        """Return the lessons of an answer that repeat a line of the prompt.

        Such a lesson names nothing that tells the feedback on its mistakes apart from other
        feedback, and is as like a line as wordings of one lesson are.
        """
        silent = [lesson for lesson in lessons if self._names_nothing(lesson)]
        if not silent or not self._lines:
            return []
        vocabulary = Vocabulary.of([*self._lines, *(lesson.text for lesson in lessons)])
        lines = [(line, vocabulary.subject(line)) for line in self._lines]
        return [
            lesson
            for lesson in silent
            if any(
                word_likeness(vocabulary.subject(lesson.text), subject) >= PARAPHRASE
                and _agree(lesson.text, line)
                for line, subject in lines
            )
        ]

    def _names_nothing(self, lesson: Lesson) -> bool:
        """Return whether a lesson names no telling word of any mistake that it comes from."""
        words = subject_words(lesson.text)
        telling = [self._telling[place] for place in lesson.sources if place in self._telling]
        return bool(telling) and all(own and own.isdisjoint(words) for own in telling)


def _agree(text: str, line: str) -> bool:
    """Return whether two texts have the same numbers and words of polarity."""
    return numbers_in(text) == numbers_in(line) and polarity_in(text) == polarity_in(line)
