"""How a long reflection fits a call: in parts, and without the middle of its longest texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from combee_dspy.records import Reflection
from combee_dspy.reflections._records import (
    as_text,
    estimate_record_tokens,
    estimate_tokens,
    is_media,
    opened,
    texts_in,
)

LEAST_TOKENS = 64
"""What one record may take at least: of less, nothing could be read."""
MAX_PARTS = 4
"""Parts that one reflection may become. What is longer loses its middle first."""

# A mapping of more fields is one long text rather than a field each.
_FIELDS = 32
_PART = "Part"
_PART_TOKENS = estimate_record_tokens({_PART: "4 of 4"})
_LEFT_OUT = " [… {:,} characters left out …] "
_IS_LEFT_OUT = re.compile(r" \[… [\d,]+ characters left out …\] ")
_LEFT_OUT_TOKENS = estimate_tokens(_LEFT_OUT.format(10**9))


def fit_reflections(
    reflections: Sequence[Reflection],
    limit_tokens: int,
    note: Callable[[str], object],
    *,
    max_parts: int = MAX_PARTS,
) -> list[Reflection]:
    """Make every reflection take at most ``limit_tokens`` estimated tokens.

    A reflection that fits is returned as it is. A longer one is split: its long texts are cut into
    consecutive pieces, one piece to a part, while every part holds its short texts. Where that
    takes more than ``max_parts`` parts, the middle of the long texts is left out first, with a mark
    that says how much. Media (``dspy.Image`` and the like) are kept whole in every part, even where
    they alone pass the limit; any other value that is too long becomes text.

    Args:
        reflections: What to fit. Not changed.
        limit_tokens: Estimated tokens that one reflection may take; below 64 it counts as 64.
        note: Receives one sentence per reflection that was split or lost text.
        max_parts: 1 to trim and never split.

    Returns:
        The reflections and parts in order. Parts share their ``index`` and count ``part`` from 1.
    """
    limit = max(limit_tokens, LEAST_TOKENS)
    fitted: list[Reflection] = []
    for reflection in reflections:
        tokens = estimate_record_tokens(reflection.record)
        if tokens <= limit:
            fitted.append(reflection)
            continue
        records, lost = _divide(reflection.record, limit, max_parts)
        # Else it fits as text, or what is too long is media and names of fields.
        if lost or len(records) > 1:
            parts = f"{len(records)} parts" if len(records) > 1 else "one text"
            middle = ", the middle left out" if lost else ""
            number = f"reflection {reflection.index} of {tokens:,} tokens"
            note(f"{number} became {parts} of {limit:,}{middle}")
        if len(records) == 1:
            fitted.append(replace(reflection, record=records[0]))
        else:
            numbered = enumerate(records, start=1)
            fitted += [replace(reflection, record=record, part=part) for part, record in numbered]
    return fitted


def is_cut(text: str) -> bool:
    """Return whether :func:`fit_reflections` left out the middle of a text."""
    return _IS_LEFT_OUT.search(text) is not None


def _divide(
    record: Mapping[str, Any], limit: int, max_parts: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return the parts of a record, and whether text was left out."""
    tree = {
        str(key): (
            {str(name): _textual(item) for name, item in value.items()}
            if isinstance(value, Mapping) and len(value) <= _FIELDS
            else _textual(value)
        )
        for key, value in record.items()
    }
    texts = list(texts_in(tree))
    sizes = [estimate_tokens(text) for text in texts]
    fixed = estimate_record_tokens(tree) - sum(sizes) + _PART_TOKENS
    # Where media fill the budget, texts about them still need room.
    cap = _level(sizes, max(limit - fixed, limit // 4))
    pieces = {text: _cut(text, cap, max_parts) for text in texts}
    lost = any("".join(parts) != text for text, parts in pieces.items())
    count = max(map(len, pieces.values()), default=1)

    def part(number: int) -> Any:
        # Every part holds the short texts; a long one may have ended before.
        chosen = {
            text: parts[0] if len(parts) == 1 else "".join(parts[number : number + 1])
            for text, parts in pieces.items()
        }
        return _replaced(tree, chosen)

    if count == 1:
        return [part(0)], lost
    return [{_PART: f"{number + 1} of {count}", **part(number)} for number in range(count)], lost


def _cut(text: str, cap: int, parts: int) -> list[str]:
    """Return a text in at most so many pieces of ``cap`` tokens, without its middle if need be."""
    pieces = list(islice(_pieces(text, cap), parts + 1))
    if len(pieces) <= parts:
        return pieces
    # Each piece may leave one token unused.
    return list(islice(_pieces(_without_middle(text, (cap - 1) * parts), cap), parts))


def _textual(value: Any) -> Any:
    """Return a value in which everything is text that holds no media, so that it can be cut."""
    if is_media(value):
        return value
    inside = opened(value)
    if isinstance(inside, Mapping):
        named = {str(key): _textual(item) for key, item in inside.items()}
        return as_text(value) if all(isinstance(item, str) for item in named.values()) else named
    items = [_textual(item) for item in inside or ()]
    return as_text(value) if all(isinstance(item, str) for item in items) else items


def _replaced(tree: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        return texts[tree]
    if isinstance(tree, dict):
        return {key: _replaced(item, texts) for key, item in tree.items()}
    return [_replaced(item, texts) for item in tree] if isinstance(tree, list) else tree


def _level(sizes: Sequence[int], room: int) -> int:
    """Return the highest cap for which the capped sizes fit the room, at least 1."""
    for position, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - position)
        if size > share:
            return max(share, 1)
        room -= size
    return max([1, *sizes])


def _pieces(text: str, cap: int) -> Iterator[str]:
    """Yield consecutive pieces of at most ``cap`` estimated tokens each.

    The empty text is one piece.
    """
    start, length = 0, _fitting(text, 0, cap)
    yield text[:length]
    while (start := start + length) < len(text):
        length = _fitting(text, start, cap)
        yield text[start : start + length]


def _fitting(text: str, start: int, cap: int) -> int:
    """Return how many characters from ``start`` make at most ``cap`` tokens; at least 1."""
    length = min(len(text) - start, 4 * cap)
    while length > 1 and (excess := estimate_tokens(text[start : start + length]) - cap) > 0:
        # What is over is at most one token a character: stepping back by the excess never
        # overshoots.
        length -= excess
    return length


def _without_middle(text: str, tokens: int) -> str:
    """Return head and tail of a text, with a mark between, in ``tokens`` estimated tokens."""
    each = max((tokens - _LEFT_OUT_TOKENS) // 2, 1)
    head = _fitting(text, 0, each)
    tail = min(_fitting(text[::-1], 0, each), len(text) - head)
    return text[:head] + _LEFT_OUT.format(len(text) - head - tail) + text[len(text) - tail :]
