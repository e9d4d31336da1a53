"""Reflections and texts as vectors of hashed character n-grams, computed here and at once: no model, no download."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from combee_dspy.records import Reflection
from combee_dspy.reflections import is_media

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    """One row per text, of unit length, or zero where there is nothing to compare."""

__all__ = ["feedback_text", "reflection_vectors", "similarities", "text_vectors"]

_BITS = 10
_GRAM = 4
# Head and tail of a text tell its subject; without a bound one log would cost more than all the others.
_MOST_CHARS = 4_000
_DEEPEST = 8
# A long number belongs to one example; a short one may be a rule's name.
_LONG_NUMBER = re.compile(r"\d{3,}(?:[.,]\d+)*|\d+[.,]\d+")
_MIXERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
_SPREAD = 0xD6E8FEB86659FD93
# What was said about an answer tells most of what it teaches; a long input must not drown it.
_WEIGHTS = {"feedback": 0.5, "output": 0.25, "": 0.25}
# Matrix products may differ in the last digits between machines; choices must not.
_DECIMALS = 5


def reflection_vectors(reflections: Sequence[Reflection]) -> Vectors:
    """Return one vector a reflection, so that the similarity of two is that of their fields, weighted.

    Feedback counts one half, outputs one quarter, and everything else, the
    inputs, one quarter, however long each of them is.

    Args:
        reflections: At least one.
    """
    import numpy as np

    parts = [
        text_vectors([_field_text(one.record, kind) for one in reflections]) * np.float32(weight**0.5)
        for kind, weight in _WEIGHTS.items()
    ]
    return _unit(np.concatenate(parts, axis=1))


def text_vectors(texts: Sequence[str]) -> Vectors:
    """Return one vector a text: hashed character 4-grams, damped by count and weighted by rarity among the texts.

    Weights are √(count) · ln((1 + n) / (texts that hold it)), the usual tf-idf
    with a damped count: what all texts share tells none of them apart.

    Args:
        texts: At least one.
    """
    import numpy as np

    counts = np.stack([_counts(text) for text in texts])
    held = np.maximum((counts > 0).sum(axis=0), 1)
    return _unit(np.sqrt(counts) * np.log((1 + len(texts)) / held).astype(np.float32))


def similarities(one: Vectors, other: Vectors) -> Vectors:
    """Return the cosine similarity of every row of one to every row of the other, in [0, 1]."""
    import numpy as np

    return np.round(one @ other.T, _DECIMALS)


def feedback_text(reflection: Reflection) -> str:
    """Return what a reflection's record says as feedback."""
    return _field_text(reflection.record, "feedback")


def _field_text(record: Mapping[str, Any], kind: str) -> str:
    return "\n".join(text for key, value in record.items() if _kind(str(key)) == kind for text in _texts(value))


def _kind(key: str) -> str:
    return next((kind for kind in _WEIGHTS if kind in key.casefold()), "")


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        # What lies deeper than a record goes is left out: no record may make this recurse without end.
        inside = value.values() if isinstance(value, Mapping) else value
        for item in inside if depth < _DEEPEST else ():
            yield from _texts(item, depth + 1)
    elif value is not None and not is_media(value):
        yield str(value)


def _counts(text: str) -> Vectors:
    import numpy as np

    if len(text) > _MOST_CHARS:
        text = f"{text[: _MOST_CHARS // 2]} {text[-_MOST_CHARS // 2 :]}"
    cleaned = " ".join(_LONG_NUMBER.sub("0", text.casefold()).split())
    if not cleaned:
        return np.zeros(1 << _BITS, np.float32)
    codes = np.frombuffer(f" {cleaned} ".ljust(_GRAM).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    size = len(codes) - _GRAM + 1
    mixed = np.zeros(size, np.uint64)
    for shift, factor in enumerate(_MIXERS):
        # Unsigned arrays wrap, which is what a multiplicative hash asks for.
        mixed += codes[shift : shift + size] * np.uint64(factor)
    buckets = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_SPREAD) >> np.uint64(64 - _BITS)
    return np.bincount(buckets.astype(np.int64), minlength=1 << _BITS).astype(np.float32)


def _unit(rows: Vectors) -> Vectors:
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
