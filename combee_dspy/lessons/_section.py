"""The lessons in a component's text: a section of the instruction, the end of a field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

_HEADER, _BULLET = "Lessons learned:", "- "
_LEARNED = re.compile(re.escape(_HEADER))


def write_section(own: str, lessons: Sequence[str], header: str = _HEADER) -> str:
    """Return an instruction: its own text, a header, and one bullet for each lesson."""
    if not lessons:
        return own
    lines = [_BULLET + " ".join(lesson.split()) for lesson in lessons]
    return "\n".join([*([own, ""] if own else []), header, *lines])


def read_section(text: str) -> tuple[str, list[str]]:
    """Split an instruction into its own text and the lessons in its section.

    The section is the last header line that bullets follow directly. Text after it belongs
    to the instruction.

    Returns:
        The own text and the lessons; all of the text and no lessons where there is no section.
    """
    own, _, lessons = split_section(text, _LEARNED)
    return own, lessons


def split_section(
    text: str, header: re.Pattern[str]
) -> tuple[str, re.Match[str] | None, list[str]]:
    """Split a text as :func:`read_section` does, at another header; return its match too."""
    lines = text.split("\n")
    for start in range(len(lines) - 2, -1, -1):
        match = header.fullmatch(lines[start].strip())
        if match and lines[start + 1].startswith(_BULLET):
            learned = list(takewhile(_is_bullet, lines[start + 1 :]))
            # write_section puts one empty line between the own text and the header.
            own = "\n".join(lines[:start]).removesuffix("\n")
            after = "\n".join(lines[start + 1 + len(learned) :]).strip("\n")
            if after.strip():
                own = f"{own}\n\n{after}" if own else after
            return own, match, [line.removeprefix(_BULLET) for line in learned]
    return text, None, []


def bullets(description: str) -> list[str]:
    """Return the lessons at the end of a field's description, one bullet each."""
    last_first = takewhile(_is_bullet, reversed(description.split("\n")))
    return [line.removeprefix(_BULLET) for line in last_first][::-1]


def with_bullets(description: str, lessons: Sequence[str]) -> str:
    """Return a field's description with these lessons in place of those at its end."""
    lines = description.split("\n") if description else []
    own = lines[: len(lines) - len(bullets(description))]
    return "\n".join([*own, *(_BULLET + lesson for lesson in lessons)])


def _is_bullet(line: str) -> bool:
    return line.startswith(_BULLET)
