"""The law of an epoch's delay by batch size, and its plateau. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from combee_dspy.records import Measurement

# The largest exponent that math.exp takes is about 709; nothing near it is a batch size.
_LOG_LIMIT = 700.0


class DelayLaw(NamedTuple):
    """T(bs) = scale · bs^(−exponent), seconds an epoch."""

    scale: float
    exponent: float

    def slope(self, size: float) -> float:
        """Return −T′(bs) = αA·bs^(−α−1), the seconds that one more example saves; 0 for α ≤ 0."""
        if self.exponent <= 0:
            return 0.0
        return _exp(
            math.log(self.exponent) + math.log(self.scale) - (self.exponent + 1) * math.log(size)
        )

    def plateau(self, tau: float) -> float:
        """Return bs = (αA/τ)^(1/(α+1)), where one more example saves τ (Combee §3.3).

        It is not rounded.

        It solves −T′(bs) = τ: below it one more example saves more than τ, above it less. 0 where α
        ≤ 0, since then no batch is better than a smaller one.
        """
        if self.exponent <= 0 or tau <= 0:
            return 0.0
        return _exp(
            (math.log(self.exponent) + math.log(self.scale) - math.log(tau)) / (self.exponent + 1)
        )


def epoch_delays(measurements: Iterable[Measurement], trainset_size: int) -> dict[int, float]:
    """Return T(bs), the seconds an epoch takes, at every batch size that was measured, ascending.

    An epoch has ``trainset_size / bs`` updates, so T(bs) = seconds · N / bs. A size measured more
    than once counts with its median, which one slow straggler cannot move far. Updates that took no
    time (everything came from a cache) say nothing about the service and are left out.
    """
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for measured in measurements:
        if measured.batch_size >= 1 and math.isfinite(measured.seconds) and measured.seconds > 0:
            seconds[measured.batch_size].append(measured.seconds)
    delays = {
        size: statistics.median(seconds[size]) * trainset_size / size for size in sorted(seconds)
    }
    # Extreme seconds may leave the range of floats once they are scaled to an epoch.
    return {size: delay for size, delay in delays.items() if 0 < delay < math.inf}


def fit_power_law(delays: Mapping[int, float]) -> DelayLaw | None:
    """Fit T(bs) = A · bs^(−α) to seconds an epoch by batch size, both above 0 (Combee §3.3).

    Least squares on logarithms, where the law is a line: delays spread by a factor, not by seconds,
    so an error of 10 % weighs the same at every size. ``None`` with fewer than two sizes, or where
    A or α is not finite.
    """
    if len(delays) < 2:
        return None
    line = statistics.linear_regression(
        [math.log(size) for size in delays], [math.log(delay) for delay in delays.values()]
    )
    if not math.isfinite(line.slope) or not abs(line.intercept) <= _LOG_LIMIT:
        return None
    return DelayLaw(math.exp(line.intercept), -line.slope)


def _exp(value: float) -> float:
    """Return exp(value), with ``value`` brought to where that is neither 0 nor infinite."""
    return math.exp(max(-_LOG_LIMIT, min(value, _LOG_LIMIT)))
