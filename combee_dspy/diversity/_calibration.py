"""The threshold of an embedder, measured: the same share of new candidates refused, whoever measures similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from combee_dspy.diversity._base import Embedder, unit_rows
from combee_dspy.diversity._corpus import INSTRUCTIONS, LESSONS
from combee_dspy.diversity._pairs import KINDS, Pair, pairs_of
from combee_dspy.diversity._similarity import Likeness
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["FALSE_REFUSALS", "Calibrated", "calibrate_threshold", "separation"]

FALSE_REFUSALS = 0.01
"""Share of new candidates that a calibrated threshold refuses."""

_FEWEST_LESSONS = 16
_FEWEST_PAIRS = 25


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A threshold and what it does on the pairs it was measured on.

    Attributes:
        threshold: Similarity above which a candidate is refused.
        false_refusals: Share of the new candidates that it refuses.
        caught: Share of the reworded candidates that it refuses.
        separation: Chance that a reworded candidate is found more similar than a new one; 0.5 is blind.
        distinct: How many pairs were new.
        near: How many were rewordings.
        refused_by_kind: ``(kind of pair, share refused)``.
    """

    threshold: float
    false_refusals: float
    caught: float
    separation: float
    distinct: int
    near: int
    refused_by_kind: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


def calibrate_threshold(
    embedder: Embedder,
    *,
    seed: int = 0,
    instructions: Sequence[str] = INSTRUCTIONS,
    lessons: Sequence[str] = LESSONS,
    pairs: int = 200,
) -> Calibrated:
    """Measure the threshold at which an embedder refuses 1 % of truly new candidates.

    A similarity of 0.92 is near identity to one embedder and everyday likeness
    to another. What can be held equal is what the figure is for: how often a
    candidate that does say something new is refused all the same. So pairs of
    grown prompts are built from the texts, half of them with lessons that this
    very embedder finds most alike, and the threshold is the 99 % quantile of
    the new ones' similarities. Rewordings come from fixed rules, so no LM is
    asked. The same seed gives the same figure.

    Args:
        embedder: What is calibrated.
        seed: Seed of every draw.
        instructions: Starting instructions, at least one.
        lessons: Lessons of the kind that the proposer writes, at least 16
            different ones. Give your task's own for a threshold that fits it.
        pairs: Pairs of each of the eight kinds, at least 25.

    Raises:
        ArgumentTypeError: ``instructions`` or ``lessons`` is one text.
        ArgumentValueError: There are too few texts or pairs, or the embedder cannot tell its texts apart.
    """
    different = _checked(instructions, lessons, pairs)
    vectors = unit_rows(embedder.embed(different), len(different))
    alike = vectors @ vectors.T
    likeness = Likeness(embedder)
    drawn = pairs_of(instructions, different, alike, seed=seed, each=pairs)
    likeness.learn(text for pair in drawn for text in (pair.first, pair.second))
    found = [(pair, likeness.of(pair.first, pair.second)) for pair in drawn]
    new = np.array([value for pair, value in found if pair.distinct])
    again = np.array([value for pair, value in found if not pair.distinct])
    # Rounded up, so that the threshold that is written down refuses no more than it was measured to.
    threshold = float(np.ceil(np.quantile(new, 1 - FALSE_REFUSALS) * 1000) / 1000)
    if not 0 < threshold < 1:
        remedy = "It gives different lessons the same vector, or unlike ones nothing in common: use another embedder."
        raise ArgumentValueError("embedder", embedder, f"gives no usable threshold ({threshold:g})", remedy)
    return Calibrated(
        threshold=threshold,
        false_refusals=float((new > threshold).mean()),
        caught=float((again > threshold).mean()),
        separation=separation(again, new),
        distinct=len(new),
        near=len(again),
        refused_by_kind=tuple((kind, _share(found, kind, threshold)) for kind in KINDS),
    )


def separation(higher: NDArray[np.float64], lower: NDArray[np.float64]) -> float:
    """Return the chance that a value drawn from one sample is above one from the other, ties counting half."""
    above = (higher[:, None] > lower[None, :]).mean()
    return float(above + (higher[:, None] == lower[None, :]).mean() / 2)


def _share(found: Sequence[tuple[Pair, float]], kind: str, threshold: float) -> float:
    values = [value > threshold for pair, value in found if pair.kind == kind]
    return sum(values) / len(values)


def _checked(instructions: Sequence[str], lessons: Sequence[str], pairs: int) -> list[str]:
    for name, texts in (("instructions", instructions), ("lessons", lessons)):
        if isinstance(texts, str):
            raise ArgumentTypeError(name, texts, "is one text", "Give a list of texts.")
    if not instructions:
        raise ArgumentValueError("instructions", instructions, "is empty", "Give at least one.")
    different = list(dict.fromkeys(lesson for lesson in lessons if lesson.strip()))
    if len(different) < _FEWEST_LESSONS:
        problem = f"holds {len(different)} different texts"
        raise ArgumentValueError("lessons", lessons, problem, f"Give at least {_FEWEST_LESSONS}.")
    if pairs < _FEWEST_PAIRS:
        raise ArgumentValueError("pairs", pairs, f"is below {_FEWEST_PAIRS}", "A 1 % quantile needs more.")
    return different
