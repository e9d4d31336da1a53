"""Which lines of the books a text serves, and texts that serve others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from combee_dspy.artifacts import Instruction
from combee_dspy.lessons import Book, BookLesson, State, lesson_id, read_section

__all__ = ["Line", "Lines"]

Line = tuple[str, str]
"""A predictor, and the id of a lesson in its book."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The books of a program's predictors, as lines that a text may serve.

    Attributes:
        own: The untouched program's texts.
        books: By predictor.
    """

    own: Mapping[str, str]
    books: Mapping[str, Book]

    def of(self, texts: Mapping[str, str]) -> set[Line]:
        """Return the lines that texts serve."""
        lines = set()
        for name, book in self.books.items():
            for text in read_section(texts.get(name, ""))[1]:
                lesson = book.find(lesson_id(text))
                if lesson is not None:
                    lines.add((name, lesson.id))
        return lines

    @property
    def removed(self) -> set[Line]:
        """The lines that people have removed."""
        return {
            (name, lesson.id)
            for name, book in self.books.items()
            for lesson in book.lessons
            if lesson.state == "removed_by_user"
        }

    def lesson(self, line: Line) -> BookLesson:
        """Return a line's lesson."""
        name, number = line
        return next(lesson for lesson in self.books[name].lessons if lesson.id == number)

    def swapped(self, base: Collection[Line], new: Collection[Line]) -> set[Line]:
        """Return lines with new ones in the place of those that they contradict."""
        rivals = {(line[0], rival) for line in new for rival in self.lesson(line).rivals}
        return (set(base) - rivals) | set(new)

    def texts(self, lines: Collection[Line]) -> dict[str, str]:
        """Return the program's texts with these lines and no others of the books."""
        texts = dict(self.own)
        for name, book in self.books.items():
            states: dict[str, tuple[State, str]] = {
                lesson.id: ("served" if (name, lesson.id) in lines else "waiting", "")
                for lesson in book.lessons
            }
            texts[name] = Instruction().serve(self.own[name], book.with_states(states))
        return texts
