"""Fitting reflections into a call's token budget: split or trimmed, and always said so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from combee_dspy.records import Reflection
from combee_dspy.reflections._tokens import as_text, estimate_record_tokens, estimate_tokens, is_media, opened

__all__ = ["MAX_PARTS", "fit_reflections"]

MAX_PARTS = 4
"""Parts that one reflection may become. What is longer is trimmed to these first, head and tail kept."""

_MIN_TOKENS = 64
_FIELDS = 32
_PART = "Part"
_PART_TOKENS = estimate_record_tokens({_PART: "4 of 4"})

_MARK_TOKENS = estimate_tokens(" [… 1,000,000,000 characters left out …] ")

_Path = tuple[str | int, ...]


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
        The reflections and parts in order. Parts share their ``index`` and count
        ``part`` from 1.
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
    tree = _text_tree(record)
    texts = dict(_texts(tree))
    fixed = estimate_record_tokens(tree) - sum(estimate_tokens(text) for text in texts.values()) + _PART_TOKENS
    # Where media fill the budget, what was said about them still needs room.
    cap = _level([estimate_tokens(text) for text in texts.values()], max(limit - fixed, limit // 4))
    pieces: dict[_Path, list[str]] = {}
    cut = False
    for path, text in texts.items():
        found = list(_pieces(text, cap, max_parts))
        if len(found) > max_parts:
            cut = True
            # Each piece may leave one token unused.
            found = list(_pieces(_without_middle(text, (cap - 1) * max_parts), cap, max_parts))[:max_parts]
        pieces[path] = found
    count = max((len(found) for found in pieces.values()), default=1)
    if count == 1 and not cut:
        return [tree], False
    parts: list[dict[str, Any]] = []
    for number in range(count):
        chosen = {path: _piece(found, number) for path, found in pieces.items()}
        part = _with_texts(tree, chosen)
        parts.append({_PART: f"{number + 1} of {count}", **part} if count > 1 else part)
    return parts, cut


def _piece(pieces: Sequence[str], number: int) -> str:
    """Return what one part says of a text: a short one stands in every part, a long one may have ended before."""
    if len(pieces) == 1:
        return pieces[0]
    return pieces[number] if number < len(pieces) else ""


def _text_tree(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record in which every value that holds no media is text, so that it can be cut."""
    tree: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping) and len(value) <= _FIELDS:
            tree[str(key)] = {str(name): _textual(item) for name, item in value.items()}
        else:
            tree[str(key)] = _textual(value)
    return tree


def _textual(value: Any) -> Any:
    if is_media(value):
        return value
    if not _holds_media(value):
        return as_text(value)
    inside = opened(value)
    if isinstance(inside, Mapping):
        return {str(key): _textual(item) for key, item in inside.items()}
    return [_textual(item) for item in inside or ()]


def _holds_media(value: Any) -> bool:
    inside = opened(value)
    if isinstance(inside, Mapping):
        inside = list(inside.values())
    return is_media(value) if inside is None else any(_holds_media(item) for item in inside)


def _texts(tree: Any, path: _Path = ()) -> Iterator[tuple[_Path, str]]:
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _texts(item, (*path, key))
    elif isinstance(tree, list):
        for position, item in enumerate(tree):
            yield from _texts(item, (*path, position))


def _with_texts(tree: Any, texts: Mapping[_Path, str], path: _Path = ()) -> Any:
    if isinstance(tree, str):
        return texts[path]
    if isinstance(tree, dict):
        return {key: _with_texts(item, texts, (*path, key)) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_with_texts(item, texts, (*path, position)) for position, item in enumerate(tree)]
    return tree


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


def _pieces(text: str, cap: int, most: int) -> Iterator[str]:
    """Yield consecutive pieces of at most ``cap`` estimated tokens each, and no more than ``most`` + 1 of them."""
    start = 0
    for _ in range(most + 1):
        length = _fitting(text, start, cap)
        yield text[start : start + length]
        start += length
        if start >= len(text):
            return


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
    backwards = text[::-1]
    tail = min(_fitting(backwards, 0, each), len(text) - head)
    return f"{text[:head]} [… {len(text) - head - tail:,} characters left out …] {text[len(text) - tail :]}"
