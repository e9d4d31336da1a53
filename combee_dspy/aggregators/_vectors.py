"""Reflections and texts as unit vectors of hashed character n-grams, and groups of like ones: no model. Pure."""

from __future__ import annotations

import random
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
# Head and tail of a text tell its subject; without a bound one log would cost more than all the others.
_MOST_CHARS = 4_000
# A long number belongs to one example; a short one may be a rule's name.
_LONG_NUMBER = re.compile(r"\d{3,}(?:[.,]\d+)*|\d+[.,]\d+")
# What was said about an answer tells most of what it teaches; a long input must not drown it.
_WEIGHTS = {"feedback": 0.5, "output": 0.25, "": 0.25}
# Matrix products may differ in the last digits between machines; choices must not.
_DECIMALS = 5


def reflection_vectors(reflections: Sequence[Reflection]) -> Vectors:
    """Return one vector for each of n ≥ 1 reflections, so that the similarity of two is that of their fields, weighted.

    Feedback counts one half, outputs one quarter, and everything else, the inputs, one quarter, however long each of
    them is.
    """
    parts = [
        text_vectors([_text(one, kind) for one in reflections]) * np.float32(weight**0.5)
        for kind, weight in _WEIGHTS.items()
    ]
    return unit_length(np.concatenate(parts, axis=1))


def text_vectors(texts: Sequence[str]) -> Vectors:
    """Return one vector for each of n ≥ 1 texts: hashed character 4-grams, by count and rarity among the texts.

    Weights are √(count) · ln((1 + n) / (texts that hold it)), the usual tf-idf with a damped count: what all texts
    share tells none of them apart.
    """
    counts = ngram_counts([_cleaned(text) for text in texts], _SIZES, _BUCKETS).toarray()
    held = np.maximum((counts > 0).sum(axis=0), 1)
    return unit_length(np.sqrt(counts) * np.log((1 + len(texts)) / held).astype(np.float32))


def similarities(one: Vectors, other: Vectors) -> Vectors:
    """Return the cosine similarity of every row of one to every row of the other, in [0, 1]."""
    return np.round(one @ other.T, _DECIMALS)


def topic_groups(
    vectors: Vectors, sizes: Sequence[int], groups: int, stream: random.Random, *, room: int, most: int
) -> list[tuple[int, ...]]:
    """Divide rows into groups of rows that are alike.

    A group is cut in two between two rows that are far apart, a row drawn and the one least like it: the others are
    ordered by which of them they are nearer to, and cut where the sizes are right. Every size is then within 1 of
    n / ``groups``, unless more groups are needed for each to hold at most ``most`` rows and ``room`` of the sizes,
    estimated tokens. One row alone may always be a group. Rows are ascending within each group.
    """

    def divided(members: list[int], parts: int) -> list[tuple[int, ...]]:
        fits = len(members) <= most and sum(sizes[member] for member in members) <= room
        if len(members) == 1 or (parts == 1 and fits):
            return [tuple(sorted(members))]
        parts = min(max(parts, 2), len(members))
        first = parts // 2
        ordered = _between_poles(vectors, members, stream)
        cut = len(members) * first // parts
        return divided(ordered[:cut], first) + divided(ordered[cut:], parts - first)

    return divided(list(range(len(vectors))), groups) if len(vectors) else []


def _between_poles(vectors: Vectors, members: list[int], stream: random.Random) -> list[int]:
    one = stream.choice(members)
    own = vectors[members]
    to_one = similarities(own, vectors[[one]])[:, 0]
    other = members[int(to_one.argmin())]
    to_other = similarities(own, vectors[[other]])[:, 0]
    nearness = dict(zip(members, (to_other - to_one).round(5).tolist(), strict=True))
    return sorted(members, key=lambda member: (nearness[member], member))


def _text(reflection: Reflection, kind: str) -> str:
    fields = (value for key, value in reflection.record.items() if _kind(str(key)) == kind)
    return "\n".join(text for value in fields for text in texts_in(value))


def _kind(key: str) -> str:
    return next((kind for kind in _WEIGHTS if kind in key.casefold()), "")


def _cleaned(text: str) -> str:
    if len(text) > _MOST_CHARS:
        text = f"{text[: _MOST_CHARS // 2]} {text[-_MOST_CHARS // 2 :]}"
    return _LONG_NUMBER.sub("0", text)
