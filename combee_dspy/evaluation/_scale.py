"""Guesses the highest score of a metric where the user has not named it."""

from __future__ import annotations

from collections.abc import Iterable

DEFAULT_PERFECT_SCORE = 1.0
"""``perfect_score`` of ``dspy.GEPA``, which few users change."""


def perfect_score_of(perfect_score: float, scores: Iterable[float]) -> float:
    """Return the score of a success.

    That is ``perfect_score``. But where it is the default of 1 and a metric
    gives more, as one from 0 to 100 does, it is the next power of ten from the
    highest score on: 10, 100, 1,000 and so on.

    Args:
        perfect_score: What the user gave, or the default.
        scores: Scores of the metric, finite.
    """
    if perfect_score != DEFAULT_PERFECT_SCORE:
        return perfect_score
    highest = max(scores, default=perfect_score)
    while perfect_score < highest:
        perfect_score *= 10
    return perfect_score
