"""Tests and intervals for the difference of two programs on the same examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from combee_dspy.exceptions import ArgumentValueError

_RESAMPLES = 9_999


def sign_test(before: Sequence[float], after: Sequence[float]) -> tuple[int, int, float]:
    """Return wins, losses and how likely so many losses are for a child that is as good as its
    parent.

    ``before`` and ``after`` are the parent's and the child's scores on the same examples; one that
    is no number is a loss. The exact one-sided sign test: ties say nothing; among w wins and l
    losses of a child that is as good as its parent, each is a loss with probability 1/2, so p =
    P(Binomial(w + l, 1/2) ≥ l), and 1 without a win or a loss. It assumes nothing about the size of
    scores, and for right-or-wrong scores it is McNemar's exact test.
    """
    # In Python's integers and by one division, so that a p of 1/4 is 0.25 and not a hair more.
    wins = sum(1 for old, new in zip(before, after, strict=True) if new > old)
    losses = sum(1 for old, new in zip(before, after, strict=True) if not new >= old)
    decided = wins + losses
    return (
        wins,
        losses,
        sum(math.comb(decided, count) for count in range(losses, decided + 1)) / 2**decided,
    )


def clearly_worse(child: Sequence[float], parent: Sequence[float], level: float = 0.05) -> bool:
    """Return whether a child's scores show it to be worse than its parent on the same examples.

    Both must hold: the sign test refuses luck at ``level``, and the child's mean is lower. The
    second matters for graded scores, where many small losses may be outweighed by a few large wins.
    A child that is as good as its parent is called worse at most that often, however few examples
    there are. A score that is no number is a loss.
    """
    _, _, chance = sign_test(parent, child)
    return chance <= level and not fmean(child) >= fmean(parent)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much better one program is than another on the same examples.

    Attributes:
        before: Mean score of the first.
        after: Mean score of the second.
        difference: ``after - before``.
        low: Lower end of its interval.
        high: Upper end.
        n: Number of examples.
        confidence: Level of the interval, for example 0.95.
    """

    before: float
    after: float
    difference: float
    low: float
    high: float
    n: int
    confidence: float


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> PairedDifference:
    """Return the paired difference of means with a bootstrap interval that holds for small samples
    too.

    Examples are resampled with both of their scores. Two corrections keep small samples honest. One
    example that gained and one that lost as much as scores lie apart are added before resampling:
    for right-or-wrong scores this is Bonett and Price's adjustment ("Adjusted Wald Confidence
    Interval for a Difference of Binomial Proportions Based on Paired Data", J. Educ. Behav. Stat.
    37, 2012), without which eight wins and no loss would exclude any loss. And quantiles are taken
    further out, as Student's t asks ("expanded percentiles", Hesterberg, "What Teachers Should Know
    About the Bootstrap", Am. Stat. 69, 2015).

    Args:
        before: Scores of the first program, one per example.
        after: Scores of the second, in the same order.
        confidence: Level, between 0 and 1.
        seed: Seed of the resampling.

    Raises:
        ArgumentValueError: The two have different lengths or are empty, or a score is not finite.
    """
    import numpy as np
    from scipy import stats

    first, second = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if first.shape != second.shape or first.size == 0:
        sizes, remedy = (first.size, second.size), "Score the same examples, at least one."
        raise ArgumentValueError("after", sizes, "does not pair with before", remedy)
    changes = second - first
    if not np.isfinite(changes).all():
        raise ArgumentValueError(
            "after", "NaN or infinite", "holds scores that cannot be compared", "Leave them out."
        )
    span = float(np.ptp([first, second])) or 1.0
    padded = np.concatenate([changes, [span, -span]])
    n = padded.size
    tail = float(stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf((1 - confidence) / 2, n - 1)))
    drawn = stats.bootstrap(
        (padded,),
        np.mean,
        n_resamples=_RESAMPLES,
        batch=max(1, 2_000_000 // n),
        confidence_level=1 - 2 * tail,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    difference = float(changes.mean())
    low, high = min(float(drawn.low), difference), max(float(drawn.high), difference)
    return PairedDifference(
        float(first.mean()), float(second.mean()), difference, low, high, changes.size, confidence
    )


def detectable_difference(
    n: float, *, discordance: float = 1.0, power: float = 0.8, confidence: float = 0.95
) -> float:
    """Return the smallest paired difference of means that can be told from none.

    ``(z(1 − (1 − confidence)/2) + z(power)) · sqrt(discordance / n)``: the normal approximation to
    the paired comparison (Lachin, "Introduction to sample size determination and power analysis for
    clinical trials", Controlled Clinical Trials 2, 1981; for scores of 0 and 1 Connor, Biometrics
    43, 1987, whose subtrahend is left out, so that it errs on the wide side). A mean can only move
    by m where a share m of the rows changes, so a discordance below the result is raised to it. A
    result above 1 says that nothing can be told.

    Args:
        n: Rows.
        discordance: Share of rows whose score differs between the two programs; for scores between
            0 and 1 the mean squared change of a row's score. 1, the worst case, by default.
        power: How often the difference is to be found.
        confidence: Level of the interval that finds it.

    Raises:
        ArgumentValueError: An argument is out of its range.
    """
    for name, value, within in (
        ("n", n, n > 0),
        ("discordance", discordance, 0 <= discordance <= 1),
        ("power", power, 0 < power < 1),
        ("confidence", confidence, 0 < confidence < 1),
    ):
        if not within:
            remedy = "Give a number of rows above 0, and shares between 0 and 1."
            raise ArgumentValueError(name, value, "is out of its range", remedy)
    z = NormalDist().inv_cdf(0.5 + confidence / 2) + NormalDist().inv_cdf(power)
    return z * math.sqrt(max(discordance, min(1.0, z * z / n)) / n)


def discordance_bound(discordance: float, n: float, *, confidence: float = 0.95) -> float:
    """Return the upper end of a one-sided interval for a discordance measured once (Clopper and
    Pearson, 1934).

    ``discordance`` is the share measured, 0 to 1, on ``n`` rows. A measured 0 stays above 0: what
    did not differ once may differ the next time. Among variables between 0 and 1 of one mean the
    binary one scatters most, so it serves squared changes of graded scores too.
    """
    from scipy.stats import beta

    hits = discordance * n
    return 1.0 if hits >= n else float(beta.ppf(confidence, hits + 1.0, n - hits))
