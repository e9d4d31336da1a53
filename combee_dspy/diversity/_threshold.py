"""Measures above which similarity an embedder should refuse a candidate."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from combee_dspy.diversity._embedders import Embedder, Vectors, unit_rows
from combee_dspy.diversity._likeness import likeness
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

_FEWEST = 16
_FALSE_REFUSALS = 0.01
_MOST_SHARED = 40
_MOST_NEW = 4


def calibrate_threshold(
    embedder: Embedder, lessons: Sequence[str], *, seed: int = 0, pairs: int = 400
) -> float:
    """Measure the threshold at which an embedder refuses 1 % of truly new candidates.

    A similarity of 0.92 is near identity to one embedder and everyday likeness to another. What can
    be held equal is how often a candidate that does say something new is refused all the same. So
    pairs of candidates are built that share up to 40 lessons and differ in one to four; in every
    second pair these are the ones that this very embedder finds most alike, as a proposer writes
    them that has one task to learn. The threshold is the 99 % quantile of their similarities. Each
    lesson is embedded once.

    Args:
        embedder: What is calibrated.
        lessons: At least 16 different ones of the kind that the proposer writes, best your task's
            own.
        seed: Seed of every draw.
        pairs: How many pairs, at least 100.

    Returns:
        A similarity in (0, 1), rounded up to three decimals, for ``Diversity(threshold=…)`` or for
        :meth:`~combee_dspy.diversity.Embedder.threshold` of an embedder that is published.

    Raises:
        ArgumentValueError: There are too few lessons or pairs, or the embedder cannot tell them
            apart.
    """
    different = list(dict.fromkeys(lesson for lesson in lessons if lesson.strip()))
    if len(different) < _FEWEST:
        problem = f"holds {len(different)} different texts"
        raise ArgumentValueError("lessons", lessons, problem, f"Give at least {_FEWEST}.")
    if pairs < 1 / _FALSE_REFUSALS:
        raise ArgumentValueError("pairs", pairs, "is below 100", "A 1 % quantile needs more.")
    vectors = unit_rows(embedder.embed(different), len(different))
    vector_of = dict(zip(different, vectors, strict=True))
    similarities: list[float] = []
    for number in range(pairs):
        stream = derive(seed, "similarity pairs", number)
        old, new = _draw(vectors, stream, alike=number % 2 == 1)
        before = {("", different[place]): different[place] for place in old}
        after = before | {("", different[place]): different[place] for place in new}
        similarities.append(likeness(before, after, lambda texts: vector_of))
    threshold = float(np.ceil(np.quantile(similarities, 1 - _FALSE_REFUSALS) * 1000) / 1000)
    if not 0 < threshold < 1:
        problem = f"gives no usable threshold ({threshold:g})"
        remedy = (
            "It gives different lessons the same vector, or unlike ones nothing in common: use"
            " another embedder."
        )
        raise ArgumentValueError("embedder", embedder, problem, remedy)
    return threshold


def _draw(
    vectors: Vectors, stream: random.Random, *, alike: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Return lessons that both of a pair share, and those that one has besides.

    Args:
        vectors: A row for each lesson.
        stream: Where chance comes from.
        alike: Whether the new ones are those most alike to the shared ones.
    """
    count = stream.choice([1, 1, 2, 3, _MOST_NEW])
    order = stream.sample(range(len(vectors)), len(vectors))
    shared = stream.randint(1, min(_MOST_SHARED, len(order) - _MOST_NEW))
    old, new = order[:shared], order[shared:]
    if alike:
        similarity = vectors @ vectors[old].T
        new.sort(key=lambda place: -float(similarity[place].max()))
    return old, new[:count]
