"""The smallest difference that a held-out set can tell from none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["HeldoutTerms", "check_target", "detectable_margin", "discordance_bound", "effective_size"]

WORST_DISCORDANCE = 1.0
"""Every row's score may change from one end of the scale to the other."""


@dataclass(frozen=True, slots=True)
class HeldoutTerms:
    """What a user wants to be able to claim, and what is known of the scores.

    Attributes:
        target: Smallest improvement that is to be claimed, in score units; ``None`` for whatever can be told.
        discordance: Share of rows whose score differs between two programs, 0 to 1, where it is
            known from elsewhere; for scores between the ends of the scale, the mean squared
            difference over ``span`` squared. ``None``: measured by an earlier receipt, or the worst case.
        power: How often a difference of the margin is to be found.
        confidence: Level of the interval that finds it.
        span: Highest score less lowest score of the metric.

    Raises:
        ArgumentValueError: A value is out of its range.
    """

    target: float | None = None
    discordance: float | None = None
    power: float = 0.8
    confidence: float = 0.95
    span: float = 1.0

    def __post_init__(self) -> None:
        if self.target is not None and not (math.isfinite(self.target) and self.target > 0):
            raise ArgumentValueError("target", self.target, "is not positive", "Give the improvement to be claimed.")
        if not (math.isfinite(self.span) and self.span > 0):
            raise ArgumentValueError("span", self.span, "is not positive", "Give the metric's highest less its lowest.")
        if self.discordance is not None:
            _within("discordance", self.discordance, closed=True)
        _within("power", self.power)
        _within("confidence", self.confidence)


def detectable_margin(
    size: float,
    *,
    discordance: float | None = None,
    variance: float | None = None,
    power: float = 0.8,
    confidence: float = 0.95,
) -> float:
    """Return the smallest paired difference of means that can be told from none.

    ``(z(1 − (1 − confidence)/2) + z(power)) · sqrt(variance / size)``: the
    normal approximation to the paired comparison (Lachin, "Introduction to
    sample size determination and power analysis for clinical trials",
    Controlled Clinical Trials 2, 1981). For scores of 0 and 1 the variance of
    the difference is the discordance less the squared difference (Connor,
    Biometrics 43, 1987); the subtrahend is left out, so the margin errs on the
    wide side. A mean can only move by m where a share m of the rows changes, so
    a discordance below the margin itself is raised to it: the margin is at least
    the squared sum of the z over the size. One above the metric's span says that
    nothing can be told.

    Args:
        size: Rows.
        discordance: Share of rows whose score differs, 0 to 1, on a scale of 0 to 1. 1, the worst
            case, where neither this nor ``variance`` is given.
        variance: Variance of the paired difference, in squared score units; counts before ``discordance``.
        power: How often the difference is to be found, between 0 and 1.
        confidence: Level of the two-sided test, between 0 and 1.

    Returns:
        The margin, in score units.

    Raises:
        ArgumentValueError: An argument is out of its range.
    """
    if not size > 0:
        raise ArgumentValueError("size", size, "is not positive", "Give the number of rows.")
    _within("power", power)
    _within("confidence", confidence)
    normal = NormalDist()
    z = normal.inv_cdf(0.5 + confidence / 2) + normal.inv_cdf(power)
    if variance is None:
        share = WORST_DISCORDANCE if discordance is None else discordance
        _within("discordance", share, closed=True)
        variance = max(share, min(WORST_DISCORDANCE, z * z / size))
    if not (math.isfinite(variance) and variance >= 0):
        raise ArgumentValueError("variance", variance, "is no variance", "Give a finite number of at least 0.")
    return z * math.sqrt(variance / size)


def discordance_bound(discordance: float, size: float, *, confidence: float = 0.95) -> float:
    """Return the upper end of a one-sided interval for a discordance measured once.

    Clopper and Pearson's (Biometrika 26, 1934). Among variables between 0 and 1
    of one mean the binary one scatters most, so it serves squared differences of
    graded scores too. A measured 0 stays above 0: what did not differ once may
    differ the next time.

    Args:
        discordance: The share measured, 0 to 1.
        size: Rows that it was measured on.
        confidence: Level, between 0 and 1.

    Raises:
        ArgumentValueError: An argument is out of its range.
    """
    from scipy.stats import beta

    _within("discordance", discordance, closed=True)
    _within("confidence", confidence)
    if not size > 0:
        raise ArgumentValueError("size", size, "is not positive", "Give the number of rows.")
    hits = discordance * size
    if hits >= size:
        return 1.0
    return min(1.0, float(beta.ppf(confidence, hits + 1.0, size - hits)))


def effective_size(rows: Iterable[str]) -> float:
    """Return how many independent rows a split amounts to, given its row hashes.

    Kish's n²/Σm² with m copies of a row (Survey Sampling, 1965, §11.7): rows
    that stand there twice tell one thing.

    Raises:
        ArgumentValueError: There is no row.
    """
    counts = Counter(rows)
    if not counts:
        raise ArgumentValueError("heldout", (), "is empty", "Give at least one example.")
    return float(sum(counts.values()) ** 2 / sum(count * count for count in counts.values()))


def check_target(target: float | None, margin: float, *, size: float = 0.0, basis: str = "") -> None:
    """Refuse a target that is finer than what the split can tell.

    Args:
        target: The improvement to be claimed, or ``None``.
        margin: What the split can tell, from :func:`detectable_margin`.
        size: Rows, for the remedy; 0 where unknown.
        basis: Where the margin's variance comes from, for the message.

    Raises:
        ArgumentValueError: ``target`` is below ``margin``.
    """
    if target is None or target >= margin:
        return
    remedy = "Set a coarser target, or take more held-out rows"
    if size:
        remedy += f": about {math.ceil(size * (margin / target) ** 2):,} for this one"
    remedy += ". If you know how many rows change their score, from a pilot on other rows, give discordance=…."
    said = f" ({basis})" if basis else ""
    raise ArgumentValueError(
        "target", target, f"is finer than the {margin:.4g} that the held-out set can tell from none{said}", remedy
    )


def _within(name: str, value: float, *, closed: bool = False) -> None:
    if not (0 <= value <= 1 if closed else 0 < value < 1):
        raise ArgumentValueError(name, value, "is out of its range", "Give a number between 0 and 1.")
