"""What changed between two texts, by line and by word, in bounded time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from combee_dspy.exceptions import ArgumentError
from combee_dspy.operators import decode_demonstrations

__all__ = ["Line", "diff", "readable"]

# difflib takes time up to the cube of what it compares: beyond this a block counts as replaced.
_LARGEST = 1_000_000
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_CONTEXT = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a comparison.

    Attributes:
        kind: Whether it is in both texts, only in the new one, only in the old
            one, or stands for lines that are left out.
        spans: ``(text, whether it is what changed)``.
    """

    kind: Literal["same", "add", "del", "gap"]
    spans: tuple[tuple[str, bool], ...]


def readable(text: str) -> str:
    """Return a component as a person reads it: demonstrations decoded, other JSON spread over lines."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        demonstrations = decode_demonstrations(text)
    except ArgumentError:
        return _spread(text)
    blocks = []
    for number, one in enumerate(demonstrations, start=1):
        lines = [f"Demonstration {number}"]
        lines += [f"  {name}: {_shown(value)}" for name, value in one.inputs.items()]
        lines += [f"  → {name}: {_shown(value)}" for name, value in one.outputs.items()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def diff(old: str, new: str) -> tuple[Line, ...]:
    """Return the lines of both texts in reading order, unchanged stretches shortened."""
    before, after = _lines(old), _lines(new)
    lines: list[Line] = []
    for tag, a, b, c, d in _opcodes(before, after):
        if tag == "equal":
            lines += [Line("same", ((line, False),)) for line in before[a:b]]
        else:
            lines += _replaced(before[a:b], after[c:d])
    return tuple(_shortened(lines))


def _lines(text: str) -> list[str]:
    # Not splitlines, which also ends a line at characters that must stay visible.
    return text.replace("\r\n", "\n").split("\n") if text else []


def _replaced(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    """Compare the lines of a block one by one where it has as many on both sides, else as wholes."""
    removed: list[Line] = []
    added: list[Line] = []
    if len(old) == len(new):
        for one, other in zip(old, new, strict=True):
            left, right = _words(one, other)
            removed.append(Line("del", left))
            added.append(Line("add", right))
    else:
        removed = [Line("del", ((line, False),)) for line in old]
        added = [Line("add", ((line, False),)) for line in new]
    yield from removed
    yield from added


Spans = tuple[tuple[str, bool], ...]


def _words(old: str, new: str) -> tuple[Spans, Spans]:
    before, after = _WORD.findall(old), _WORD.findall(new)
    left: list[tuple[str, bool]] = []
    right: list[tuple[str, bool]] = []
    for tag, a, b, c, d in _opcodes(before, after):
        changed = tag != "equal"
        left += [("".join(before[a:b]), changed)] if b > a else []
        right += [("".join(after[c:d]), changed)] if d > c else []
    return tuple(left), tuple(right)


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    """Return what difflib returns; common ends are cut off first, and a huge middle counts as replaced."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    a, c = old[head : len(old) - tail], new[head : len(new) - tail]
    found: list[tuple[str, int, int, int, int]] = [("equal", 0, head, 0, head)] if head else []
    if len(a) * len(c) > _LARGEST:
        found.append(("replace", head, head + len(a), head, head + len(c)))
    else:
        matcher = SequenceMatcher(None, a, c)
        found += [(t, i + head, j + head, k + head, m + head) for t, i, j, k, m in matcher.get_opcodes()]
    if tail:
        found.append(("equal", len(old) - tail, len(old), len(new) - tail, len(new)))
    return found


def _shortened(lines: Sequence[Line]) -> Iterator[Line]:
    changed = [number for number, one in enumerate(lines) if one.kind != "same"]
    near = {number + step for number in changed for step in range(-_CONTEXT, _CONTEXT + 1)}
    if not changed:
        near = set(range(2 * _CONTEXT))
    hidden = 0
    for number, one in enumerate(lines):
        if number in near:
            if hidden:
                yield _gap(hidden)
            hidden = 0
            yield one
        else:
            hidden += 1
    if hidden:
        yield _gap(hidden)


def _gap(count: int) -> Line:
    return Line("gap", ((f"… {count} unchanged {'line' if count == 1 else 'lines'}", False),))


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _spread(text: str) -> str:
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return "\n".join(f"{name}: {_shown(value)}" for name, value in found.items())
        return json.dumps(found, ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return text
