"""The book's lessons in the instruction, by code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.lessons import Book, Taught, lesson_id, read_section, write_section
from combee_dspy.operators._base import Operator, OperatorInput, check_edit, lessons_at_hand
from combee_dspy.operators._section import section_room, serve
from combee_dspy.records import Edit, Refusal
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext, parameters


@parameters
class Insert(Operator):
    """Serves the book: its lessons end the instruction, as a section of bullets.

    The instruction's own text stays as it is. The section holds what the book serves, in the book's
    order: each rule before its exceptions. A lesson that the book no longer serves leaves the
    section; a line that the book does not hold, such as one of another author, stays. A candidate
    of a front serves its share of the book. Where the section passes its budget, or the room that
    the guards leave, the lessons that the fewest examples teach are left out, and a warning names
    them. Lines with a protected rule stay, and so do the user's own. No LM is asked. Where the
    aggregator wrote a whole instruction, that is the edit.

    Example:
        >>> import asyncio
        >>> from combee_dspy.operators import Insert
        >>> from combee_dspy.testing import context, operator_input
        >>> edit = asyncio.run(Insert().apply(operator_input(lessons=1), context()))
        >>> print(edit.instruction)
        Answer the question.
        <BLANKLINE>
        Lessons learned:
        - Check step 0 of the sum.

    Args:
        max_tokens: Estimated tokens that the section may take. The instruction's own text does not
            count: it is the user's. The default holds about two hundred lessons, a third of what a
            call may take.
    """

    name: ClassVar[str] = "insert"
    serves_book: ClassVar[bool] = True

    max_tokens: Annotated[int, Field(ge=1)] = 8_000

    async def apply(self, material: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the new instruction, or why there is none."""
        if material.lessons.rewrite is not None:
            return check_edit(Edit(instruction=material.lessons.rewrite.strip()), material, context)
        own, present = read_section(material.instruction)
        book = material.book or _book_of(present, material)
        foreign = [line for line in present if book.find(lesson_id(line)) is None]
        if not present and not book.served:
            return Refusal("there are no lessons to insert")
        section = serve(
            foreign, book.served, section_room(self.max_tokens, own, material), material, context
        )
        if isinstance(section, Refusal):
            return section
        return check_edit(Edit(instruction=write_section(own, section)), material, context)

    def fits(self, new: str, old: str) -> bool:
        """Return whether the section of lessons is within the budget, or no longer than before."""
        tokens, before = (
            estimate_tokens(write_section("", read_section(text)[1])) for text in (new, old)
        )
        return tokens <= max(self.max_tokens, before)


def _book_of(present: Sequence[str], material: OperatorInput) -> Book:
    """Return the book of a host that keeps none: the section's lessons, and those at hand."""
    book = Book().add(map(Taught, present), born=-1).add(lessons_at_hand(material), born=0)
    return book.edit(material.lessons.edits).book
