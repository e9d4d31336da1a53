"""The smallest difference that a held-out set can tell from none."""

from __future__ import annotations

import math
from statistics import NormalDist

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["detectable_difference", "discordance_bound"]


def detectable_difference(n: float, *, discordance: float = 1.0, power: float = 0.8, confidence: float = 0.95) -> float:
    """Return the smallest paired difference of means that can be told from none.

    ``(z(1 − (1 − confidence)/2) + z(power)) · sqrt(discordance / n)``: the
    normal approximation to the paired comparison (Lachin, "Introduction to
    sample size determination and power analysis for clinical trials",
    Controlled Clinical Trials 2, 1981; for scores of 0 and 1 Connor, Biometrics
    43, 1987, whose subtrahend is left out, so that it errs on the wide side). A mean can
    only move by m where a share m of the rows changes, so a discordance below
    the result is raised to it. A result above 1 says that nothing can be told.

    Args:
        n: Rows.
        discordance: Share of rows whose score differs between the two programs; for scores between 0 and 1
            the mean squared change of a row's score. 1, the worst case, by default.
        power: How often the difference is to be found.
        confidence: Level of the interval that finds it.

    Raises:
        ArgumentValueError: An argument is out of its range.
    """
    ranges = {
        "n": n > 0,
        "discordance": 0 <= discordance <= 1,
        "power": 0 < power < 1,
        "confidence": 0 < confidence < 1,
    }
    for name, within in ranges.items():
        if not within:
            remedy = "Give a number of rows above 0, and shares between 0 and 1."
            raise ArgumentValueError(name, locals()[name], "is out of its range", remedy)
    z = NormalDist().inv_cdf(0.5 + confidence / 2) + NormalDist().inv_cdf(power)
    return z * math.sqrt(max(discordance, min(1.0, z * z / n)) / n)


def discordance_bound(discordance: float, n: float, *, confidence: float = 0.95) -> float:
    """Return the upper end of a one-sided interval for a discordance measured once (Clopper and Pearson, 1934).

    A measured 0 stays above 0: what did not differ once may differ the next time.
    Among variables between 0 and 1 of one mean the binary one scatters most,
    so it serves squared changes of graded scores too.

    Args:
        discordance: The share measured, 0 to 1.
        n: Rows that it was measured on.
        confidence: Level, between 0 and 1.
    """
    from scipy.stats import beta

    hits = discordance * n
    return 1.0 if hits >= n else float(beta.ppf(confidence, hits + 1.0, n - hits))
