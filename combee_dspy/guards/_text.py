"""What stands in a component's text: placeholders, and the section of learned lessons, written and read by code."""

from __future__ import annotations

import re
from collections.abc import Sequence

HEADER = "Lessons learned:"
BULLET = "- "

_PLACEHOLDER = re.compile(r"\{[^\W\d]\w*\}|</?[^\W\d][\w.-]*\s*/?>")


def placeholders(text: str) -> tuple[str, ...]:
    """Return the placeholders of a text in order, each once: ``{identifier}`` and ``<tag>``, ``</tag>``.

    A program may fill them in or parse them, so an edit must not lose one that
    the seed's text has. Those that only learned text has are nobody's contract.
    """
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(text)))


def own_description(name: str, text: str) -> str:
    """Return a field's description without DSPy's stand-in ``${name}``, which no LM is shown."""
    return "" if text == f"${{{name}}}" else text


def write_section(own: str, lessons: Sequence[str]) -> str:
    """Return an instruction: its own text, then the header and one bullet a lesson, its white space made single."""
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
