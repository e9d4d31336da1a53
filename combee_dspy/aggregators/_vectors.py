"""Reflections and texts as unit vectors of hashed character n-grams: no model. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from combee_dspy.records import Reflection
from combee_dspy.reflections import ngram_counts, texts_in, unit_length

Vectors = NDArray[np.float32]
"""One row per text, of unit length, or zero where there is nothing to compare."""

_BUCKETS = 1024
_SIZES = (4,)
# Head and tail of a text tell its subject; without a bound one log would cost more than all the
# others.
_MOST_CHARS = 4_000
# A long number belongs to one example; a short one may be a rule's name.
_LONG_NUMBER = re.compile(r"\d{3,}(?:[.,]\d+)*|\d+[.,]\d+")
# What was said about an answer tells most of what it teaches; a long input must not drown it.
_WEIGHTS = {"feedback": 0.5, "output": 0.25, "": 0.25}
# Matrix products may differ in the last digits between machines; choices must not.
_DECIMALS = 5


def reflection_vectors(reflections: Sequence[Reflection]) -> Vectors:
    """Return one vector for each of n ≥ 1 reflections, from its weighted fields.

    Feedback counts one half, outputs one quarter, and everything else, the inputs, one quarter,
    however long each of them is.
    """
    parts = [
        text_vectors([_text(reflection, kind) for reflection in reflections])
        * np.float32(weight**0.5)
        for kind, weight in _WEIGHTS.items()
    ]
    return unit_length(np.concatenate(parts, axis=1))


def text_vectors(texts: Sequence[str]) -> Vectors:
    """Return one vector for each of n ≥ 1 texts: hashed 4-grams, by count and rarity.

    Weights are √(count) · ln((1 + n) / (texts that hold it)), the usual tf-idf with a damped count:
    what all texts share tells none of them apart.
    """
    counts = ngram_counts([_cleaned(text) for text in texts], _SIZES, _BUCKETS).toarray()
    held = np.maximum((counts > 0).sum(axis=0), 1)
    return unit_length(np.sqrt(counts) * np.log((1 + len(texts)) / held).astype(np.float32))


def similarities(rows: Vectors, columns: Vectors) -> Vectors:
    """Return the cosine similarity of every row of one to every row of the other, in [0, 1]."""
    return np.round(rows @ columns.T, _DECIMALS)


def _text(reflection: Reflection, kind: str) -> str:
    fields = (value for key, value in reflection.record.items() if _kind(str(key)) == kind)
    return "\n".join(text for value in fields for text in texts_in(value))


def _kind(key: str) -> str:
    return next((kind for kind in _WEIGHTS if kind in key.casefold()), "")


def _cleaned(text: str) -> str:
    if len(text) > _MOST_CHARS:
        text = f"{text[: _MOST_CHARS // 2]} {text[-_MOST_CHARS // 2 :]}"
    return _LONG_NUMBER.sub("0", text)
