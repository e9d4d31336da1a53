"""The section of an instruction that holds learned lessons: written and read back by code."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BULLET", "HEADER", "bullets", "read_section", "write_section"]

HEADER = "Lessons learned:"
BULLET = "- "


def write_section(own: str, lessons: Sequence[str]) -> str:
    """Return an instruction: its own text, then the header and one bullet a lesson.

    Args:
        own: The instruction's own text.
        lessons: One line each; other white space becomes single spaces.
    """
    if not lessons:
        return own
    lines = [BULLET + " ".join(lesson.split()) for lesson in lessons]
    return "\n".join([*([own, ""] if own else []), HEADER, *lines])


def read_section(text: str) -> tuple[str, list[str]]:
    """Split an instruction into its own text and the lessons in its section.

    The section is the last header line that bullets follow directly. Text that
    stands after it belongs to the instruction and is kept.

    Returns:
        The own text and the lessons; all of the text and no lessons where there is no section.
    """
    lines = text.split("\n")
    for start in range(len(lines) - 2, -1, -1):
        if lines[start].strip() != HEADER or not lines[start + 1].startswith(BULLET):
            continue
        end = start + 1
        while end < len(lines) and lines[end].startswith(BULLET):
            end += 1
        before, after = "\n".join(lines[:start]), "\n".join(lines[end:])
        # write_section puts one empty line between the own text and the header.
        own = before.removesuffix("\n")
        if after.strip():
            own = f"{own}\n\n{after.strip(chr(10))}" if own else after.strip("\n")
        return own, [line.removeprefix(BULLET) for line in lines[start + 1 : end]]
    return text, []


def bullets(description: str) -> list[str]:
    """Return the lessons at the end of a field's description, one bullet each."""
    lines = description.split("\n")
    start = len(lines)
    while start and lines[start - 1].startswith(BULLET):
        start -= 1
    return [line.removeprefix(BULLET) for line in lines[start:]]
