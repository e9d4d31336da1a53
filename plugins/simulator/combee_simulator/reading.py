"""What a prompt of a writing request holds: the current instruction, its examples, its limit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from combee_simulator.matching import stretches_of
from combee_simulator.shapes import Style

__all__ = ["read_examples", "read_limit", "split_instruction"]

_HEADER = re.compile(r"^\[\[ ## (\w+) ## \]\]$", re.MULTILINE)
_MARKED = {
    Style.FENCED: re.compile(r"```\w*\n(.*?)```", re.DOTALL),
    Style.TAGGED: re.compile(r"<VARIABLE>(.*?)</VARIABLE>", re.DOTALL),
}
_LIMIT = re.compile(r"\bat most ([\d,]{1,12}) (characters|tokens)\b", re.IGNORECASE)
_CHARS = {"characters": 1, "tokens": 4}
# The first field of a record where the reader is to say which records a lesson comes from.
_EXAMPLE = re.compile(r'\{\s*\\*"example\\*":\s*(\d{1,6})\b')


def split_instruction(user: str, style: Style) -> tuple[str, str]:
    """Return the current instruction in a user's text, or "", and the text without it."""
    if style in _MARKED:
        match = _MARKED[style].search(user)
        if match is None:
            return "", user
        return match[1].strip(), user[: match.start()] + user[match.end() :]
    headers = list(_HEADER.finditer(user))
    ends = [*(header.start() for header in headers[1:]), len(user)][: len(headers)]
    sections = [
        (header[1].lower(), header.end(), end)
        for header, end in zip(headers, ends, strict=True)
        if "instruction" in header[1].lower() and not header[1].lower().startswith("additional")
    ]
    if not sections:
        return "", user
    _, start, end = next(
        (section for section in sections if section[0].startswith("current")), sections[0]
    )
    return user[start:end].strip(), user[:start] + user[end:]


def read_examples(text: str, places: Sequence[int]) -> list[int | None]:
    """Return the number of the record that each of these words stands in.

    ``None`` where records have no numbers.
    """
    if not places or not _EXAMPLE.search(text.lower()):
        return [None] * len(places)
    numbers: list[int | None] = []
    latest: int | None = None
    # What stands before a place decides about it, so the last piece tells nothing.
    for piece in stretches_of(text, (0, *places))[:-1]:
        latest = int(in_piece[-1]) if (in_piece := _EXAMPLE.findall(piece)) else latest
        numbers.append(latest)
    return numbers


def read_limit(user: str) -> int | None:
    """Return the most characters that a text may have, where the user states a limit."""
    limit = _LIMIT.search(user)
    return int(limit[1].replace(",", "") or 0) * _CHARS[limit[2].lower()] if limit else None
