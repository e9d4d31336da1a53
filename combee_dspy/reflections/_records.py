"""A reflection's record: its texts, its tokens, and how it fits a call."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import dspy
import pydantic

from combee_dspy.records import Reflection

MEDIA_TOKENS = 1_000
"""What an image, a file or a recording is taken to cost: a mid-sized image tile count; real costs
differ by model.
"""
LEAST_TOKENS = 64
"""What one record may take at least: of less, nothing could be read."""
MAX_PARTS = 4
"""Parts that one reflection may become. What is longer is trimmed to these first, head and tail
kept.
"""

_KEY_TOKENS = 3
# A mapping of more fields is one long text rather than a field each.
_FIELDS = 32
# DSPy marks typed values inside a rendered prompt with this and turns what follows back into
# message content: in the text of a record it could smuggle in an image's address.
_MARK, _HARMLESS = "<<CUSTOM-TYPE-", "< <CUSTOM-TYPE-"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter of its ASCII characters, each other character.

    Four characters a token is the common rule for English. Other scripts take one to two characters
    a token; one is the cautious end.
    """
    ascii_length = len(text.encode("ascii", "ignore"))
    return -(-ascii_length // 4) + len(text) - ascii_length


_key_tokens = functools.lru_cache(estimate_tokens)  # the same few names in every record


def estimate_record_tokens(value: object) -> int:
    """Estimate the tokens of a record or of any value in it, keys and punctuation included.

    Media count :data:`MEDIA_TOKENS` each, whatever their size in bytes.
    """
    if isinstance(value, str):
        return estimate_tokens(value)
    inside = _opened(value)
    if isinstance(inside, Mapping):
        keys = sum(map(_key_tokens, map(str, inside)))
        return len(inside) * _KEY_TOKENS + keys + sum(map(estimate_record_tokens, inside.values()))
    if inside is not None:
        return len(inside) + sum(map(estimate_record_tokens, inside))
    return MEDIA_TOKENS if is_media(value) else estimate_tokens(_as_text(value))


def is_media(value: object) -> bool:
    """Return whether a value reaches the LM as something other than text (``dspy.Image``)."""
    if not isinstance(value, dspy.Type):
        return False
    try:
        content = value.format()
    except NotImplementedError:
        return False
    return isinstance(content, list) and any(part.get("type") != "text" for part in content)


def _opened(value: object) -> Mapping[Any, Any] | Sequence[Any] | None:
    """Return what a container holds, a model as a mapping; ``None`` for no container."""
    if isinstance(value, pydantic.BaseModel) and not isinstance(value, dspy.Type):
        return _fields(value)
    return value if isinstance(value, (Mapping, list, tuple)) else None


def _fields(model: pydantic.BaseModel) -> dict[str, Any]:
    # Not dict(model): a model may iterate over something else, as those of a list do.
    return vars(model) | (model.model_extra or {})


def _as_text(value: object) -> str:
    """Return the text that stands for a value which is no container of media."""
    if isinstance(value, pydantic.BaseModel):
        try:
            return value.model_dump_json(fallback=str)
        except (ValueError, TypeError, NotImplementedError, AttributeError):
            pass  # A type of the user's own may not dump; its repr still says what it is.
    return str(value)


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts in a record or in any value of it, media and names of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)
    elif value is not None and not is_media(value):
        yield str(value)


def feedback_text(reflection: Reflection) -> str:
    """Return what a reflection's record says as feedback, empty where it says nothing."""
    fields = (
        value for key, value in reflection.record.items() if "feedback" in str(key).casefold()
    )
    return "\n".join(text for value in fields for text in texts_in(value))


def render_records(reflections: Iterable[Reflection]) -> list[dict[str, object]]:
    """Return the records as values of a ``list[dict[str, Any]]`` input field.

    DSPy types (images, files, histories) stay what they are and reach the LM as such. Text in which
    DSPy's own type marks occur is defused.
    """
    return [
        {str(key): _defused(value) for key, value in reflection.record.items()}
        for reflection in reflections
    ]


def _defused(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_MARK, _HARMLESS)
    if isinstance(value, Mapping):
        return {str(_defused(str(key))): _defused(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_defused(item) for item in value]
    if is_media(value) or _MARK not in (text := _as_text(value)):
        return value
    if isinstance(value, pydantic.BaseModel):
        return value.model_copy(
            update={name: _defused(item) for name, item in _fields(value).items()}
        )
    return text.replace(_MARK, _HARMLESS)  # a dataclass, a set, or what else DSPy can write down


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
    consecutive pieces, one piece to a part, while its short texts stand in every part. Where that
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
        records, cut = _divide(reflection.record, limit, max_parts)
        if cut or len(records) > 1:
            # Otherwise it fits as text, or what is too long is media and field names: nothing was
            # cut.
            lost = ", the middle left out" if cut else ""
            parts = f"{len(records)} parts" if len(records) > 1 else "one text"
            note(
                f"reflection {reflection.index} of {tokens:,} tokens became {parts} of"
                f" {limit:,}{lost}"
            )
        if len(records) == 1:
            fitted.append(replace(reflection, record=records[0]))
        else:
            fitted.extend(
                replace(reflection, record=record, part=part)
                for part, record in enumerate(records, 1)
            )
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
    # Where media fill the budget, what was said about them still needs room.
    cap = _level(sizes, max(limit - fixed, limit // 4))
    pieces: dict[str, list[str]] = {}
    cut = False
    for text in texts:
        pieces[text] = list(islice(_pieces(text, cap), max_parts + 1))
        if len(pieces[text]) > max_parts:
            cut = True
            # Each piece may leave one token unused.
            pieces[text] = list(
                islice(_pieces(_without_middle(text, (cap - 1) * max_parts), cap), max_parts)
            )
    count = max(map(len, pieces.values()), default=1)

    def part(number: int) -> Any:
        # A short text stands in every part, a long one may have ended before.
        chosen = {
            text: parts[0] if len(parts) == 1 else "".join(parts[number : number + 1])
            for text, parts in pieces.items()
        }
        return _replaced(tree, chosen)

    if count == 1:
        return [part(0)], cut
    return [{_PART: f"{number + 1} of {count}", **part(number)} for number in range(count)], cut


def _textual(value: Any) -> Any:
    """Return a value in which everything is text that holds no media, so that it can be cut."""
    if is_media(value):
        return value
    inside = _opened(value)
    if isinstance(inside, Mapping):
        named = {str(key): _textual(item) for key, item in inside.items()}
        return _as_text(value) if all(isinstance(item, str) for item in named.values()) else named
    items = [_textual(item) for item in inside or ()]
    return _as_text(value) if all(isinstance(item, str) for item in items) else items


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
