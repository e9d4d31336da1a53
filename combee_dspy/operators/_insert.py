"""The book's lessons in the instruction, by code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.events import WarningRaised
from combee_dspy.lessons import Book, BookLesson, Taught, lesson_id, read_section, write_section
from combee_dspy.operators._base import (
    Operator,
    OperatorInput,
    check_edit,
    describe_parent,
    is_protected,
    lessons_at_hand,
)
from combee_dspy.records import Edit, Refusal
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext, parameters

__all__ = ["Insert", "section_room", "section_tokens", "serve"]

_SHOWN = 3
"""Lessons that a warning names."""
_LONGEST = 60
"""Characters that it shows of each."""


@parameters
class Insert(Operator):
    """Serves the book: its lessons stand at the end of the instruction, as a section of bullets.

    The instruction's own text stays as it is. The section holds what the book serves, in the book's
    order: each rule before its exceptions. A lesson that the book no longer serves leaves the
    section; a line that the book does not hold, since somebody else wrote it, stays. Where the
    section passes its budget, or the room that the guards leave, the lessons that the fewest
    examples teach are left out, and a warning names them. Lines with a protected rule stay, and
    so do the user's own. No LM is asked. Where the aggregator wrote a whole instruction, that is
    the edit.

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


def _book_of(present: Sequence[str], material: OperatorInput) -> Book:
    """Return the book of a host that keeps none: the section's lessons, and those at hand."""
    book = Book().add(map(Taught, present), born=-1).add(lessons_at_hand(material), born=0)
    return book.edit(material.lessons.edits).book


def section_room(most: int, own: str, material: OperatorInput) -> int:
    """Return the tokens that a section may take: the budget, or what the guards leave of theirs."""
    if material.guards.max_tokens is None:
        return most
    # The line that parts the own text from the section is nobody's: one token.
    used = estimate_tokens(own) + sum(map(estimate_tokens, describe_parent(material).values())) + 1
    return min(most, material.guards.max_tokens - used)


def section_tokens(lessons: Sequence[str]) -> int:
    """Return the estimated tokens of a section of lessons."""
    return estimate_tokens(write_section("", lessons))


def serve(
    foreign: Sequence[str],
    served: Sequence[BookLesson],
    room: int,
    material: OperatorInput,
    context: StrategyContext,
) -> Sequence[str] | Refusal:
    """Return the lines of a section that takes at most ``room`` estimated tokens.

    Foreign lines come first. Of the book's lessons those that most examples teach stay, of equals
    the earliest; the protected ones and the user's own stay in any case.
    """
    lines = [*foreign, *(lesson.text for lesson in served)]
    own = {lesson.text for lesson in served if lesson.own}
    if section_tokens(lines) <= room:
        return lines
    protected = [line for line in lines if line in own or is_protected(line, material, context)]
    if section_tokens(protected) > room or room < 1:
        stays = f", of which {len(own):,} are the student's own and stay," if own else ""
        tokens = section_tokens(lines)
        return Refusal(
            f"{len(lines):,} lessons{stays} take {tokens:,} tokens and there is room for {room:,}"
        )
    by_support = sorted(served, key=lambda lesson: -lesson.support)
    chosen = _filled(protected, [*foreign, *(lesson.text for lesson in by_support)], room)
    if not chosen:
        return Refusal(f"not one of {len(lines):,} lessons fits into {room:,} tokens")
    _warn([line for line in lines if line not in chosen], len(lines), room, context)
    return [line for line in lines if line in chosen]


def _filled(protected: Sequence[str], lines: Sequence[str], room: int) -> set[str]:
    """Return the protected lines and, in order, those of the others that still fit."""
    chosen = set(protected)
    used = section_tokens(protected or [""])
    for line in lines:
        tokens = estimate_tokens(f"- {line}\n")
        if line not in chosen and used + tokens <= room:
            chosen.add(line)
            used += tokens
    return chosen


def _warn(left_out: Sequence[str], count: int, room: int, context: StrategyContext) -> None:
    text = (
        f"{context.component}: {len(left_out):,} of {count:,} lessons are left out to keep {room:,}"
        f" tokens: {'; '.join(repr(line[:_LONGEST]) for line in left_out[:_SHOWN])}"
    )
    more = f"; and {len(left_out) - _SHOWN:,} more" if len(left_out) > _SHOWN else ""
    context.emit(WarningRaised(text + more))
