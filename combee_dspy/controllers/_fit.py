"""The power law of Combee §3.3, as pure functions of measured delays."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from combee_dspy.records import Measurement

__all__ = ["epoch_delays", "fit_power_law", "plateau", "slope"]

# The largest exponent that math.exp takes is about 709; nothing near it is a batch size.
_LOG_LIMIT = 700.0


def epoch_delays(measurements: Iterable[Measurement], trainset_size: int) -> dict[int, float]:
    """Return T(bs), the seconds an epoch takes, at every batch size that was measured.

    An epoch has ``trainset_size / bs`` updates, so T(bs) = seconds · N / bs.
    A size measured more than once counts with its median, which one slow
    straggler cannot move far. Updates that took no time (everything came
    from a cache) say nothing about the service and are left out.

    Args:
        measurements: Delays of finished updates, seconds.
        trainset_size: N, examples.

    Returns:
        Seconds an epoch by batch size, in ascending order of size.
    """
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for measured in measurements:
        if measured.batch_size >= 1 and math.isfinite(measured.seconds) and measured.seconds > 0:
            seconds[measured.batch_size].append(measured.seconds)
    delays = {size: statistics.median(seconds[size]) * trainset_size / size for size in sorted(seconds)}
    # Extreme seconds may leave the range of floats once they are scaled to an epoch.
    return {size: delay for size, delay in delays.items() if 0 < delay < math.inf}


def fit_power_law(delays: Mapping[int, float]) -> tuple[float, float] | None:
    """Fit T(bs) = A · bs^(−α) to delays (Combee §3.3).

    Least squares on logarithms, where the law is a line: delays spread by a
    factor, not by seconds, so an error of 10 % weighs the same at every size.

    Args:
        delays: Seconds an epoch by batch size, both above 0.

    Returns:
        ``(A, α)``: seconds and a number without unit. ``None`` with fewer than
        two sizes, or where A or α is not finite.
    """
    if len(delays) < 2:
        return None
    logs = [math.log(size) for size in delays], [math.log(delay) for delay in delays.values()]
    line = statistics.linear_regression(*logs)
    log_scale, exponent = line.intercept, -line.slope
    if not math.isfinite(exponent) or not abs(log_scale) <= _LOG_LIMIT:
        return None
    return math.exp(log_scale), exponent


def slope(scale: float, exponent: float, size: float) -> float:
    """Return −T′(bs) = αA·bs^(−α−1), the seconds an epoch that one more example a batch saves; 0 where α ≤ 0."""
    if exponent <= 0 or scale <= 0:
        return 0.0
    return _exp(math.log(exponent) + math.log(scale) - (exponent + 1) * math.log(size))


def plateau(scale: float, exponent: float, tau: float) -> float:
    """Return bs = (αA/τ)^(1/(α+1)), where one more example a batch saves τ (Combee §3.3).

    It solves −T′(bs) = τ. Below it one more example saves more than τ, above it less.

    Args:
        scale: A, seconds.
        exponent: α.
        tau: τ, seconds an epoch.

    Returns:
        Examples, not rounded; 0 where α ≤ 0, since then no batch is better than a smaller one.
    """
    if exponent <= 0 or scale <= 0 or tau <= 0:
        return 0.0
    return _exp((math.log(exponent) + math.log(scale) - math.log(tau)) / (exponent + 1))


def _exp(value: float) -> float:
    """Return exp(value), with ``value`` brought to where that is neither 0 nor infinite."""
    return math.exp(max(-_LOG_LIMIT, min(value, _LOG_LIMIT)))
