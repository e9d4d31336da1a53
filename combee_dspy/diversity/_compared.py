"""Measures of similarity between candidates, side by side: why the guard's is what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from combee_dspy.diversity._base import Embedder, unit_rows
from combee_dspy.diversity._calibration import separation
from combee_dspy.diversity._corpus import INSTRUCTIONS
from combee_dspy.diversity._pairs import Pair, pairs_of
from combee_dspy.diversity._similarity import Likeness

__all__ = ["compared"]

_PAIRS = 200
_NAMED = 0.92


def compared(embedder: Embedder, lessons: Sequence[str], *, seed: int) -> str:
    """Return a Markdown table: each measure's separation, and what 0.92 would do with it.

    Args:
        embedder: What turns texts into vectors.
        lessons: At least 16 different lessons.
        seed: Seed of the pairs.
    """
    vectors = unit_rows(embedder.embed(lessons), len(lessons))
    drawn = pairs_of(INSTRUCTIONS, lessons, vectors @ vectors.T, seed=seed, each=_PAIRS)
    rows = [
        "| measure | told apart | at 0.92: new refused | at 0.92: reworded refused |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, values in _measured(embedder, drawn).items():
        new = np.array([value for pair, value in zip(drawn, values, strict=True) if pair.distinct])
        again = np.array([value for pair, value in zip(drawn, values, strict=True) if not pair.distinct])
        figures = (separation(again, new), float((new > _NAMED).mean()), float((again > _NAMED).mean()))
        rows.append(f"| {name} | {figures[0]:.3f} | {figures[1]:.1%} | {figures[2]:.1%} |")
    return "\n".join(rows)


def _measured(embedder: Embedder, drawn: Sequence[Pair]) -> Mapping[str, list[float]]:
    texts = list(dict.fromkeys(text for pair in drawn for text in (pair.first, pair.second)))
    position = {text: number for number, text in enumerate(texts)}
    whole = unit_rows(embedder.embed(texts), len(texts))
    found = {"whole texts": [float(whole[position[p.first]] @ whole[position[p.second]]) for p in drawn]}
    for telling in (False, True):
        likeness = Likeness(embedder, telling=telling)
        likeness.learn(texts)
        nearest = [likeness.nearest(pair.first, pair.second) for pair in drawn]
        suffix = ", numbers and negations must agree" if telling else ""
        for name, reduced in _REDUCED.items():
            found[name + suffix] = [reduced(values) if values.size else 1.0 for values in nearest]
    return found


_REDUCED: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "mean over the statements that differ": lambda values: float(values.mean()),
    "least over the statements that differ": lambda values: float(values.min()),
}
