"""Which exceptions depart from a rule in the same way, by their words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from combee_dspy.lessons import Book, BookLesson
from combee_dspy.texts import normalised

__all__ = ["Departures"]

_WORD = re.compile(r"\w+")
# A word that a larger part of the lessons holds belongs to the way they are worded.
_COMMON = 0.1


class Departures:
    """Which lessons depart from a rule in the same way, and what follows for votes.

    Args:
        book: All lessons.
        lessons: Those by id that may be served.
    """

    def __init__(self, book: Book, lessons: Mapping[str, BookLesson]) -> None:
        self._book = {lesson.id: lesson for lesson in book.lessons}
        self.lessons = lessons
        self._exceptions: dict[str, list[BookLesson]] = {}
        for lesson in lessons.values():
            self._exceptions.setdefault(lesson.rule, []).append(lesson)
        self._words = {
            lesson.id: set(_WORD.findall(normalised(lesson.text))) for lesson in book.lessons
        }
        holders = Counter(word for home in lessons for word in self._words[home])
        self._rare = {
            word for word, count in holders.items() if count <= max(2, _COMMON * len(lessons))
        }

    def _is_alike(self, first: BookLesson, second: BookLesson, rule: str) -> bool:
        """Return whether two lessons depart from a rule in the same way."""
        return bool(self._departure(first, rule) & self._departure(second, rule))

    def _departure(self, lesson: BookLesson, rule: str) -> set[str]:
        """Return the words in which a lesson departs from a rule: its numbers, else rare words."""
        words = self._words[lesson.id] - self._words[rule]
        return {word for word in words if any(map(str.isdigit, word))} or words & self._rare

    def votes(self, lesson: BookLesson) -> set[str]:
        """Return the examples that teach a lesson.

        An exception that departs from the lesson's rival in the same way votes for it.
        """
        votes = set(lesson.sources)
        for rival in lesson.rivals:
            if rival in self.lessons:
                votes |= self._find_departing_like(lesson, rival)
        return votes

    def examples(self, exception: BookLesson) -> set[str]:
        """Return the examples that depart from an exception's rule in the way that it does."""
        return {*exception.sources, *self._find_departing_like(exception, exception.rule)}

    def _find_departing_like(self, lesson: BookLesson, rule: str) -> set[str]:
        return {
            source
            for exception in self._exceptions.get(rule, ())
            if self._is_alike(exception, lesson, rule)
            for source in exception.sources
        }

    def is_repeated(self, lesson: BookLesson, served: Collection[str]) -> bool:
        """Return whether a rule that is served says what a lesson says.

        That is a rival of the rule that lost, for an exception to that rule; or, for what
        contradicts an exception that is not served, the exception's rule.
        """
        rule = self._book.get(lesson.rule)
        if rule is not None and rule.id not in served:
            rivals = [rival for rival in rule.rivals if rival in served and rival != lesson.id]
            if any(self._is_alike(lesson, self._book[rival], rule.id) for rival in rivals):
                return True
        exceptions = [self._book[rival] for rival in lesson.rivals if rival in self._book]
        return any(
            exception.rule in served
            and exception.id not in served
            and exception.rule != lesson.id
            and self._is_alike(lesson, self._book[exception.rule], exception.id)
            for exception in exceptions
        )
