"""Intervals for a paired difference of mean scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["PairedDifference", "paired_difference"]

_BLOCK = 2_000_000


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much better one program is than another on the same examples.

    Attributes:
        before: Mean score of the first.
        after: Mean score of the second.
        low: Lower end of the interval of ``after - before``.
        high: Upper end.
        confidence: Level of the interval, for example 0.95.
        size: Number of examples.
    """

    before: float
    after: float
    low: float
    high: float
    confidence: float
    size: int

    @property
    def difference(self) -> float:
        """``after - before``."""
        return self.after - self.before


def paired_difference(
    before: Sequence[float],
    after: Sequence[float],
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> PairedDifference:
    """Return the paired difference of means with its percentile bootstrap interval.

    Examples are resampled with replacement, each with both of its scores
    (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, §13.3).

    Args:
        before: Scores of the first program, one per example.
        after: Scores of the second, in the same order.
        seed: Seed of the resampling.
        confidence: Level, between 0 and 1.
        resamples: How many resamples.

    Raises:
        ArgumentValueError: The two have different lengths, or are empty.
    """
    if len(before) != len(after) or len(before) == 0:
        lengths = (len(before), len(after))
        raise ArgumentValueError(
            "after", lengths, "does not pair with before", "Score the same examples, at least one."
        )
    first, second = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    differences = second - first
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // len(differences))
    means: list[np.ndarray] = []
    for start in range(0, resamples, rows):
        picks = generator.integers(0, len(differences), size=(min(rows, resamples - start), len(differences)))
        means.append(differences[picks].mean(axis=1))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return PairedDifference(
        float(first.mean()), float(second.mean()), float(low), float(high), confidence, len(differences)
    )
