"""Laws of an epoch's delay by batch size: fitted, compared, and their plateau. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from combee_dspy.records import Measurement

# The largest exponent that math.exp takes is about 709; nothing near it is a batch size.
_LOG_LIMIT = 700.0
# Delays of a service spread by some percent at least: a fit that is nearer than this is no better
# for it.
_EXACT = 1e-6
_FLOORED = (
    4  # parameters of a law with a floor, its error included; the law without one has one less
)


class DelayLaw(NamedTuple):
    """T(bs) = scale · bs^(−exponent) + floor, seconds an epoch."""

    scale: float
    exponent: float
    floor: float = 0.0

    def delay(self, size: float) -> float:
        """Return T(size)."""
        return self.scale * size**-self.exponent + self.floor

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


def fit_law(measurements: Iterable[Measurement], trainset_size: int) -> DelayLaw | None:
    """Fit the power law, or the one with a floor, A·bs^(−α) + B, where that is better by AICc.

    The power law goes through the median of each size. The two are compared on all delays by their
    squared errors of logarithms, AICc = n·ln(RSS / n) + 2k + 2k(k + 1) / (n − k − 1) (Hurvich and
    Tsai 1989), with k = 3 and 4 parameters, so a floor needs six updates at least, of four sizes.
    """
    measured = tuple(measurements)
    delays = epoch_delays(measured, trainset_size)
    plain = fit_power_law(delays)
    points = [
        (measurement.batch_size, measurement.seconds * trainset_size / measurement.batch_size)
        for measurement in measured
        if measurement.batch_size in delays and 0 < measurement.seconds < math.inf
    ]
    # What is steeper than any service, or as extreme as a clock that is broken, has no floor worth
    # finding.
    if plain is None or not 0 < plain.exponent < 3 or not 1e-30 < plain.scale < 1e30:
        return plain
    if len(points) < _FLOORED + 2 or len(delays) < _FLOORED:
        return plain
    floored = _fit_floored(points, plain)
    line = statistics.linear_regression(
        [math.log(size) for size, _ in points], [math.log(measurement) for _, measurement in points]
    )
    straight = DelayLaw(math.exp(line.intercept), -line.slope)
    return (
        floored
        if _aicc(points, floored, _FLOORED) < _aicc(points, straight, _FLOORED - 1)
        else plain
    )


def _fit_floored(points: list[tuple[int, float]], near: DelayLaw) -> DelayLaw:
    from scipy.optimize import least_squares

    least = min(delay for _, delay in points)

    def errors(parameters: tuple[float, float, float]) -> list[float]:
        law = DelayLaw(_exp(parameters[0]), parameters[1], parameters[2] * least)
        return [math.log(law.delay(size) / delay) for size, delay in points]

    # The floor is a share of the shortest delay.
    fitted = least_squares(
        errors,
        (math.log(near.scale), near.exponent + 0.1, 0.5),
        bounds=((-100, 0.01, 0), (100, 10, 1)),
    )
    return DelayLaw(_exp(float(fitted.x[0])), float(fitted.x[1]), float(fitted.x[2]) * least)


def _aicc(points: list[tuple[int, float]], law: DelayLaw, k: int) -> float:
    n = len(points)
    rss = sum(math.log(law.delay(size) / delay) ** 2 for size, delay in points)
    return n * math.log(max(rss / n, _EXACT**2)) + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def _exp(value: float) -> float:
    """Return exp(value), with ``value`` brought to where that is neither 0 nor infinite."""
    return math.exp(max(-_LOG_LIMIT, min(value, _LOG_LIMIT)))
