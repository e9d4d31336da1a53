"""Fitting reflections into a call's token budget: split or trimmed, and always said so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from combee_dspy.records import Reflection
from combee_dspy.reflections._records import as_text, estimate_record_tokens, estimate_tokens, is_media, opened

MAX_PARTS = 4
"""Parts that one reflection may become. What is longer is trimmed to these first, head and tail kept."""

_MIN_TOKENS = 64
# A mapping of more fields is one long text rather than a field each.
_FIELDS = 32
_PART = "Part"
_PART_TOKENS = estimate_record_tokens({_PART: "4 of 4"})
_MARK_TOKENS = estimate_tokens(" [… 1,000,000,000 characters left out …] ")


def fit_reflections(
    reflections: Sequence[Reflection],
    limit_tokens: int,
    note: Callable[[str], object],
    *,
    max_parts: int = MAX_PARTS,
) -> list[Reflection]:
    """Make every reflection take at most ``limit_tokens`` estimated tokens.

    A reflection that fits is returned as it is. A longer one is split: its long
    texts are cut into consecutive pieces, one piece to a part, while its short
    texts stand in every part. Where that takes more than ``max_parts`` parts,
    the middle of the long texts is left out first, with a mark that says how
    much. Media (``dspy.Image`` and the like) are kept whole in every part, even
    where they alone pass the limit; any other value that is too long becomes text.

    Args:
        reflections: What to fit. Not changed.
        limit_tokens: Estimated tokens that one reflection may take; below 64 it counts as 64.
        note: Receives one sentence per reflection that was split or lost text.
        max_parts: 1 to trim and never split.

    Returns:
        The reflections and parts in order. Parts share their ``index`` and count ``part`` from 1.
    """
    limit = max(limit_tokens, _MIN_TOKENS)
    fitted: list[Reflection] = []
    for reflection in reflections:
        tokens = estimate_record_tokens(reflection.record)
        if tokens <= limit:
            fitted.append(reflection)
            continue
        records, cut = _divide(reflection.record, limit, max_parts)
        if cut or len(records) > 1:
            # Otherwise it fits as text, or what is too long is media and field names: nothing was cut.
            lost = ", the middle left out" if cut else ""
            parts = f"{len(records)} parts" if len(records) > 1 else "one text"
            note(f"reflection {reflection.index} of {tokens:,} tokens became {parts} of {limit:,}{lost}")
        if len(records) == 1:
            fitted.append(replace(reflection, record=records[0]))
        else:
            fitted.extend(replace(reflection, record=record, part=part) for part, record in enumerate(records, 1))
    return fitted


def _divide(record: Mapping[str, Any], limit: int, max_parts: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the parts of a record, and whether text was left out."""
    tree = {
        str(key): {str(name): _textual(item) for name, item in value.items()}
        if isinstance(value, Mapping) and len(value) <= _FIELDS
        else _textual(value)
        for key, value in record.items()
    }
    sizes = [estimate_tokens(text) for text in _texts(tree)]
    fixed = estimate_record_tokens(tree) - sum(sizes) + _PART_TOKENS
    # Where media fill the budget, what was said about them still needs room.
    cap = _level(sizes, max(limit - fixed, limit // 4))
    pieces: dict[str, list[str]] = {}
    cut = False
    for text in _texts(tree):
        pieces[text] = list(islice(_pieces(text, cap), max_parts + 1))
        if len(pieces[text]) > max_parts:
            cut = True
            # Each piece may leave one token unused.
            pieces[text] = list(islice(_pieces(_without_middle(text, (cap - 1) * max_parts), cap), max_parts))
    count = max(map(len, pieces.values()), default=1)

    def part(number: int) -> Any:
        # A short text stands in every part, a long one may have ended before.
        chosen = {
            text: found[0] if len(found) == 1 else "".join(found[number : number + 1]) for text, found in pieces.items()
        }
        return _replaced(tree, chosen)

    if count == 1:
        return [part(0)], cut
    return [{_PART: f"{number + 1} of {count}", **part(number)} for number in range(count)], cut


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


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (dict, list)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(item)


def _replaced(tree: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        return texts[tree]
    if isinstance(tree, dict):
        return {key: _replaced(item, texts) for key, item in tree.items()}
    return [_replaced(item, texts) for item in tree] if isinstance(tree, list) else tree


def _level(sizes: Sequence[int], room: int) -> int:
    """Return the highest cap, at least 1, for which the capped sizes fit the room: short texts stay whole."""
    left = room
    ordered = sorted(sizes)
    for position, size in enumerate(ordered):
        share = left // (len(ordered) - position)
        if size > share:
            return max(share, 1)
        left -= size
    return max(ordered[-1], 1) if ordered else 1


def _pieces(text: str, cap: int) -> Iterator[str]:
    """Yield consecutive pieces of at most ``cap`` estimated tokens each; one of nothing for the empty text."""
    start, length = 0, _fitting(text, 0, cap)
    yield text[:length]
    while (start := start + length) < len(text):
        length = _fitting(text, start, cap)
        yield text[start : start + length]


def _fitting(text: str, start: int, cap: int) -> int:
    """Return how many characters from ``start`` make at most ``cap`` estimated tokens; 1 at least."""
    length = min(len(text) - start, 4 * cap)
    while length > 1 and estimate_tokens(text[start : start + length]) > cap:
        # What is over is at most one token a character: stepping back by the excess never overshoots.
        length -= max(1, estimate_tokens(text[start : start + length]) - cap)
    return length


def _without_middle(text: str, tokens: int) -> str:
    """Return head and tail of a text, at most ``tokens`` estimated tokens where there is room for the mark between."""
    each = max((tokens - _MARK_TOKENS) // 2, 1)
    head = _fitting(text, 0, each)
    tail = min(_fitting(text[::-1], 0, each), len(text) - head)
    return f"{text[:head]} [… {len(text) - head - tail:,} characters left out …] {text[len(text) - tail :]}"
