"""The threshold of an embedder, measured: the same share of new candidates refused, whoever measures similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from combee_dspy.diversity._base import Embedder, unit_rows
from combee_dspy.diversity._likeness import likeness
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

_FEWEST = 16
_FALSE_REFUSALS = 0.01
_MOST_SHARED = 40
_MOST_NEW = 4


def calibrate_threshold(embedder: Embedder, lessons: Sequence[str], *, seed: int = 0, pairs: int = 400) -> float:
    """Measure the threshold at which an embedder refuses 1 % of truly new candidates.

    A similarity of 0.92 is near identity to one embedder and everyday likeness
    to another. What can be held equal is how often a candidate that does say something new is
    refused all the same. So pairs of candidates are built that share up to 40 lessons and differ in
    one to four; in every second pair these are the ones that this very embedder finds most alike, as
    a proposer writes them that has one task to learn. The threshold is the 99 % quantile of their similarities.

    Args:
        embedder: What is calibrated. Each lesson is embedded once.
        lessons: Lessons of the kind that the proposer writes, at least 16
            that say different things, best your task's own.
        seed: Seed of every draw.
        pairs: How many pairs, at least 100.

    Returns:
        A similarity in (0, 1), rounded up to three decimals, for ``Diversity(threshold=…)`` or
        for :meth:`~combee_dspy.diversity.Embedder.threshold` of an embedder that is published.

    Raises:
        ArgumentValueError: There are too few lessons or pairs, or the embedder cannot tell them apart.
    """
    different = list(dict.fromkeys(lesson for lesson in lessons if lesson.strip()))
    if len(different) < _FEWEST:
        remedy = f"Give at least {_FEWEST}."
        raise ArgumentValueError("lessons", lessons, f"holds {len(different)} different texts", remedy)
    if pairs < 1 / _FALSE_REFUSALS:
        raise ArgumentValueError("pairs", pairs, "is below 100", "A 1 % quantile needs more.")
    vectors = unit_rows(embedder.embed(different), len(different))
    known = dict(zip(different, vectors, strict=True))
    alike = vectors @ vectors.T
    found = []
    for number in range(pairs):
        stream = derive(seed, "similarity pairs", number)
        count = stream.choice([1, 1, 2, 3, _MOST_NEW])
        order = stream.sample(range(len(different)), len(different))
        shared = stream.randint(1, min(_MOST_SHARED, len(order) - _MOST_NEW))
        old, new = order[:shared], order[shared:]
        if number % 2:
            new.sort(key=lambda one: -float(alike[one, old].max()))
        said = {("", different[one]): different[one] for one in old}
        more = {("", different[one]): different[one] for one in new[:count]}
        found.append(likeness(said, {**said, **more}, lambda texts: known))
    threshold = float(np.ceil(np.quantile(found, 1 - _FALSE_REFUSALS) * 1000) / 1000)
    if not 0 < threshold < 1:
        remedy = "It gives different lessons the same vector, or unlike ones nothing in common: use another embedder."
        raise ArgumentValueError("embedder", embedder, f"gives no usable threshold ({threshold:g})", remedy)
    return threshold
