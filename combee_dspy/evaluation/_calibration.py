"""Do two ways of judging rank rollouts alike?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.events import CalibrationFinished
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, CalibrationFailedError

__all__ = ["Calibration", "CalibrationResult", "calibrate"]

LEAST_PAIRS = 4
"""Below four pairs the standard error of a rank correlation is not defined."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a judge is held against a reference.

    Attributes:
        reference: A metric of GEPA's protocol that is trusted: code, or a judge with another LM.
        share: Share of rollouts that both judge.
        minimum: Pairs needed before anything is decided.
        threshold: Spearman's correlation that must be reached, as the design asks: 0.7.
        confidence: Level of the correlation's interval.

    Raises:
        ArgumentTypeError: ``reference`` is not callable.
        ArgumentValueError: A figure is out of its range.
    """

    reference: Callable[..., Any]
    share: float = 0.05
    minimum: int = 20
    threshold: float = 0.7
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not callable(self.reference):
            raise ArgumentTypeError("reference", self.reference, "is not callable", "Give a metric.")
        if not 0 < self.share <= 1:
            raise ArgumentValueError("share", self.share, "is no share", "Give a number above 0, at most 1.")
        if self.minimum < LEAST_PAIRS:
            raise ArgumentValueError("minimum", self.minimum, "is too few", f"Give at least {LEAST_PAIRS}.")
        if not -1 < self.threshold <= 1:
            raise ArgumentValueError("threshold", self.threshold, "is no correlation", "Give a number up to 1.")
        if not 0 < self.confidence < 1:
            raise ArgumentValueError("confidence", self.confidence, "is no level", "Give a number between 0 and 1.")

    def share_for(self, planned: int | None) -> float:
        """Return the share that yields the minimum by half of a run.

        Args:
            planned: Rollouts that the run may buy, or ``None`` where that is not known.

        Returns:
            ``share``, or more where a short run would end before anything could be decided.
        """
        if not planned or planned < 1:
            return self.share
        return min(1.0, max(self.share, 2 * self.minimum / planned))


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """What a calibration has found.

    Attributes:
        subject: ``"judge"`` or ``"proxy"``.
        correlation: Spearman's rank correlation; NaN where it is not defined.
        low: Lower end of its interval; -1 where it is not defined.
        high: Upper end; 1 where it is not defined.
        confidence: The interval's level.
        threshold: What the correlation must reach.
        passed: Whether it does.
        reason: One sentence with the figures.
        pairs: ``(subject's score, reference's score)`` per rollout, sorted.
    """

    subject: str
    correlation: float
    low: float
    high: float
    confidence: float
    threshold: float
    passed: bool
    reason: str
    pairs: tuple[tuple[float, float], ...]

    def event(self, iteration: int) -> CalibrationFinished:
        """Return it as an event."""
        return CalibrationFinished(
            iteration=iteration,
            subject=self.subject,
            size=len(self.pairs),
            correlation=self.correlation,
            low=self.low,
            high=self.high,
            threshold=self.threshold,
            passed=self.passed,
            pairs=self.pairs,
        )

    def require(self) -> None:
        """Raise unless it passed.

        Raises:
            CalibrationFailedError: It did not.
        """
        if not self.passed:
            raise CalibrationFailedError(self.subject, self.reason, self)


def calibrate(
    pairs: Sequence[tuple[float, float]],
    *,
    subject: str = "judge",
    threshold: float = 0.7,
    confidence: float = 0.95,
) -> CalibrationResult:
    """Return Spearman's rank correlation of two judges, with its interval.

    The correlation is scipy's ``spearmanr``; ties share their mean rank. The
    interval is Fisher's z with the standard error ``sqrt((1 + r²/2)/(n − 3))``
    of Bonett and Wright ("Sample size requirements for estimating Pearson,
    Kendall and Spearman correlations", Psychometrika 65, 2000). A perfect rank
    order has no finite z: the interval is then that of an order with one pair
    of neighbours exchanged, r = 1 − 12/(n(n² − 1)). The figure that is compared
    with the threshold is the correlation itself, not an end of the interval.

    A judge whose scores are all equal ranks nothing: the correlation is not
    defined, and the calibration fails with that reason.

    Args:
        pairs: ``(subject's score, reference's score)``, at least four, in any order.
        subject: What is calibrated, for the message.
        threshold: What must be reached.
        confidence: Level of the interval.

    Raises:
        ArgumentValueError: There are fewer than four pairs, or a score is not finite.
    """
    ordered = tuple(sorted((float(first), float(second)) for first, second in pairs))
    if len(ordered) < LEAST_PAIRS:
        remedy = f"Judge at least {LEAST_PAIRS} rollouts by both."
        raise ArgumentValueError("pairs", len(ordered), "are too few for a rank correlation", remedy)
    if not all(math.isfinite(score) for pair in ordered for score in pair):
        raise ArgumentValueError("pairs", "NaN or infinite", "hold a score that cannot be ranked", "Leave it out.")
    constant = [name for name, column in (("the " + subject, 0), ("the reference", 1)) if _constant(ordered, column)]
    if constant:
        reason = f"{' and '.join(constant)} gave all {len(ordered)} rollouts one score, so no rank correlation exists"
        return CalibrationResult(subject, math.nan, -1.0, 1.0, confidence, threshold, False, reason, ordered)
    found = _spearman(ordered)
    low, high = _interval(found, len(ordered), confidence)
    passed = found >= threshold
    reason = (
        f"Spearman's correlation with the reference is {found:.3f} ({confidence:.0%} interval {low:.3f} to {high:.3f}) "
        f"over {len(ordered)} rollouts, where {threshold:g} is needed"
    )
    return CalibrationResult(subject, found, low, high, confidence, threshold, passed, reason, ordered)


def _constant(pairs: Sequence[tuple[float, float]], column: int) -> bool:
    return len({pair[column] for pair in pairs}) == 1


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    from scipy.stats import spearmanr

    first, second = zip(*pairs, strict=True)
    # Rounded where sums of ranks leave a perfect order a hair off 1.
    return round(max(-1.0, min(1.0, float(spearmanr(first, second).statistic))), 12)


def _interval(correlation: float, size: int, confidence: float) -> tuple[float, float]:
    from scipy.stats import norm

    bound = 1 - 12 / (size * (size**2 - 1))
    within = max(-bound, min(bound, correlation))
    half = float(norm.ppf(0.5 + confidence / 2)) * math.sqrt((1 + within**2 / 2) / (size - 3))
    low, high = math.tanh(math.atanh(within) - half), math.tanh(math.atanh(within) + half)
    return min(low, correlation), max(high, correlation)
