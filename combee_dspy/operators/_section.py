"""The section of lessons at an instruction's end, within a budget."""

from __future__ import annotations

from collections.abc import Sequence

from combee_dspy.events import WarningRaised
from combee_dspy.lessons import BookLesson, write_section
from combee_dspy.operators._base import OperatorInput, describe_parent, is_protected
from combee_dspy.records import Refusal
from combee_dspy.reflections import estimate_tokens, fit_lines
from combee_dspy.strategies import StrategyContext

# Lessons that a warning names, and the characters that it shows of each.
_NAMED, _LONGEST = 3, 60


def section_room(most: int, own: str, material: OperatorInput) -> int:
    """Return the tokens that a section may take: the budget, or what the guards leave of theirs."""
    if material.guards.max_tokens is None:
        return most
    # One token for the empty line before the section.
    used = estimate_tokens(own) + sum(map(estimate_tokens, describe_parent(material).values())) + 1
    return min(most, material.guards.max_tokens - used)


def _tokens(lessons: Sequence[str]) -> int:
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
    if _tokens(lines) <= room:
        return lines
    protected = [line for line in lines if line in own or is_protected(line, material, context)]
    if _tokens(protected) > room or room < 1:
        stays = f", of which {len(own):,} are the student's own and stay," if own else ""
        lessons = f"{len(lines):,} lessons{stays} take {_tokens(lines):,} tokens"
        return Refusal(f"{lessons} and there is room for {room:,}")
    by_support = sorted(served, key=lambda lesson: -lesson.support)
    others = [*foreign, *(lesson.text for lesson in by_support)]
    left = room - _tokens(protected or [""])
    chosen = {*protected, *fit_lines((line for line in others if line not in protected), left)}
    if not chosen:
        return Refusal(f"not one of {len(lines):,} lessons fits into {room:,} tokens")
    _warn([line for line in lines if line not in chosen], len(lines), room, context)
    return [line for line in lines if line in chosen]


def _warn(left_out: Sequence[str], count: int, room: int, context: StrategyContext) -> None:
    text = (
        f"{context.component}: {len(left_out):,} of {count:,} lessons are left out to keep {room:,}"
        f" tokens: {'; '.join(repr(line[:_LONGEST]) for line in left_out[:_NAMED])}"
    )
    more = f"; and {len(left_out) - _NAMED:,} more" if len(left_out) > _NAMED else ""
    context.emit(WarningRaised(text + more))
