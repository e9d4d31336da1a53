"""The ``skill`` artifact: an instruction within a limit, and a folder for agents beside it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import dspy
from pydantic import Field

from combee_dspy.artifacts._instruction import Instruction
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lessons import Book, BookLesson, Taught, decode_book, lesson_id, read_section
from combee_dspy.operators import Insert, Operator
from combee_dspy.reflections import fit_lines
from combee_dspy.strategies import parameters


@parameters
class Skill(Instruction):
    """An instruction that shows the lessons which matter always, and goes on with a skill's book.

    The program reads the beginning of a skill, within a limit: the user's own lessons,
    then those that most examples teach. The book holds the others, and ``combee skill RUN`` writes
    all of them to a folder (see :mod:`combee_dspy.skills`).

    Example:
        >>> import dspy
        >>> from combee_dspy.artifacts import Skill
        >>> from combee_dspy.lessons import Book, Taught, encode_book
        >>> book = Book().add([Taught("Round to two decimals.", ("row 7",))], born=0)
        >>> student = dspy.Predict(dspy.Signature("question -> answer", "Be brief."))
        >>> print(Skill(book=encode_book(book)).seed(student)["self"])
        Be brief.
        <BLANKLINE>
        Lessons learned:
        - Round to two decimals.

    Args:
        view: As of :class:`Instruction`.
        operators: As of :class:`Instruction`. By default ``insert`` within ``max_tokens``.
        max_tokens: Estimated tokens of the lessons that the program reads.
        book: What was learned before, as :func:`combee_dspy.lessons.encode_book` writes it. The run
            begins with a program that shows it, and its examples go on to count.
        predictor: The predictor that the book is about, where the program has several.
    """

    name: ClassVar[str] = "skill"
    max_tokens: Annotated[int, Field(ge=64)] = 4_000
    book: str = "[]"
    predictor: str = ""

    def __post_init__(self) -> None:
        decode_book(self.book)

    def usual_operators(self) -> tuple[Operator, ...]:
        """Return ``insert`` within the limit."""
        return (Insert(max_tokens=self.max_tokens),)

    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return instructions, that of the book's predictor with what the book serves.

        Raises:
            ArgumentValueError: There is a book, and it is not clear of which predictor.
        """
        texts = super().seed(student)
        if not decode_book(self.book).lessons:
            return texts
        names = [name for name, _ in student.named_predictors()]
        home = self.predictor or (names[0] if len(names) == 1 else "")
        if home not in texts:
            remedy = f"Name the one that the book is about: {', '.join(names)}."
            raise ArgumentValueError("predictor", home, "is no predictor of the program", remedy)
        lines = read_section(texts[home])[1]
        book = decode_book(self.book).add(map(Taught, lines), born=-1)
        return {**texts, home: self.serve(texts[home], Book(self._in_sight(book)))}

    def begin(self, text: str) -> Book:
        """Return the skill's book and the lines beside it, where the text shows the skill, or the
        skill has nothing to show.
        """
        lines, book = read_section(text)[1], decode_book(self.book)
        if book.served and not any(book.find(lesson_id(line)) for line in lines):
            return self.read(text)
        return book.add(map(Taught, lines), born=-1)

    def _in_sight(self, book: Book) -> tuple[BookLesson, ...]:
        ordered = sorted(book.served, key=lambda lesson: (not lesson.own, -lesson.support))
        chosen = set(fit_lines((lesson.text for lesson in ordered), self.max_tokens))
        return tuple(lesson for lesson in book.served if lesson.text in chosen)
