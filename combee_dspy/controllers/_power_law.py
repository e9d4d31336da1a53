"""The paper's controller, as large a batch as still saves time: sizes to measure, a law fitted to their delays."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.controllers._base import (
    BatchController,
    BatchView,
    budget_bound,
    capacity_bound,
    clamped,
    trainset_bound,
    updates_bound,
    variance_bound,
)
from combee_dspy.records import BatchDecision, Clamp, Measurement, PowerLawFit
from combee_dspy.strategies import parameters

# A plateau of a nearly flat law may exceed any integer that is worth writing down.
_LARGEST = 10**9
# The largest exponent that math.exp takes is about 709; nothing near it is a batch size.
_LOG_LIMIT = 700.0
# Below a dozen examples an update is often refused on its screen, and one without a validation says nothing about those
# that have one.
_FEW = 12
# Wide enough to tell a service that is full (α = 0, equal epochs) from one that is idle (α = 1, a fifth of the time).
_SPREAD = 5
_Count = Annotated[int, Field(ge=1)]


@parameters
class PowerLaw(BatchController):
    """The last size at which one more example a batch still saves τ (Combee §3.3).

    T(bs), the seconds an epoch takes at batch size bs, is modelled as A·bs^(−α). Inside the first epoch at least three
    sizes are measured, from small to large. From then on each update fits A and α again to all delays measured (the
    median of each size) and picks the plateau bs = (αA/τ)^(1/(α+1)), rounded down, between ``min_size`` and the bounds.

    **What τ is relative to.** The paper gives 1.6 % and leaves open of what. Here it is the slope of the law at b0,
    the smallest size measured: τ = r·αA·b0^(−α−1), fixed once the sizes are measured. The plateau is then
    b0·(1/r)^(1/(α+1)): with r = 0.016, 15.7 times the smallest size at α = 0.5, 9.9 times at α = 0.8, 7.9 times at
    α = 1. Give ``tau`` where seconds mean something to you.

    **Even batches.** What is left of an epoch is cut into batches of one size: five of 48 rather than four of 56 and
    one of 16, whose update would cost as much time as the others.

    **What is measured.** A geometric ladder of sizes from a dozen examples, or a fifth of the largest where that is
    less, up to N / ``min_updates``.

    **Bounds.** Every bound that changes the size is kept as a clamp, in this order: ``min-size`` (the only one that
    raises it), ``trainset`` (N), ``epoch-updates`` (N / ``min_updates``), ``capacity`` (``waves`` times what runs at
    once), ``variance`` (the mean score known to 0.05), ``budget`` and ``even``. While sizes are measured,
    ``epoch-updates`` and ``variance`` do not cut.

    Args:
        tau: τ, seconds an epoch that one more example must save; ``None`` for ``relative_tau``.
        relative_tau: r, the same as a share of the law's slope at the smallest size measured.
        profile: Distinct sizes measured inside the first epoch. Two fit any power law exactly; the third is the first
            to say whether it is one.
        min_updates: Updates that an epoch keeps at least.
        min_size: Examples of the smallest batch, where trainset and bounds allow.
        waves: Full waves of rollouts a batch may take on what runs at once.
    """

    name: ClassVar[str] = "power-law"
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    relative_tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.016
    profile: Annotated[int, Field(ge=3)] = 3
    min_updates: _Count = 4
    min_size: _Count = 3
    waves: _Count = 4

    def plan(self, view: BatchView) -> BatchDecision:
        """Return the next size to measure, or the plateau."""
        delays = epoch_delays(view.measurements, view.trainset_size)
        return self._measuring(view, delays) or self._chosen(view, delays)

    def _measuring(self, view: BatchView, delays: dict[int, float]) -> BatchDecision | None:
        largest = _top(view.trainset_size, self.profile, self.min_updates)
        # Sizes planned count, not sizes measured: a good student's minibatches are skipped, and
        # a ladder that waited for their delays would stay on its first rung.
        taken = {*view.planned, *delays}
        if not largest or len(taken) >= self.profile or view.seen >= view.trainset_size:
            return None
        wanted = next_size(taken, self.profile, self.min_size, largest)
        bounds = trainset_bound(view), capacity_bound(view, self.waves), budget_bound(view)
        size, clamps = clamped(wanted, bounds)
        if size in taken:
            found = other_size(taken, max(1, min(self.min_size, size - self.profile + 1)), size)
            if found is None:
                return None
            size = found
        known = ", ".join(map(str, delays)) or "none"
        reason = f"measuring: size {len(taken) + 1} of {self.profile} inside the first epoch, measured so far: {known}"
        return BatchDecision(size, reason, clamps=clamps)

    def _chosen(self, view: BatchView, delays: dict[int, float]) -> BatchDecision:
        fit, size, reason = self._wanted(view, delays)
        raised: tuple[Clamp, ...] = ()
        if size < self.min_size:
            raised = (Clamp("min-size", size, self.min_size, f"no batch below {self.min_size} examples"),)
            size = self.min_size
        bounds = (
            trainset_bound(view),
            updates_bound(view, self.min_updates),
            capacity_bound(view, self.waves),
            variance_bound(view, self.min_size),
            budget_bound(view),
        )
        size, clamps = clamped(size, bounds)
        left = view.trainset_size - view.seen % view.trainset_size
        updates = -(-left // size)
        even = -(-left // updates)
        if self.min_size <= even < size:
            why = f"{left} examples are left of the epoch: {updates} batches of {even}"
            clamps += (Clamp("even", size, even, why),)
            size = even
        return BatchDecision(size, reason, fit, raised + clamps)

    def _wanted(self, view: BatchView, delays: dict[int, float]) -> tuple[PowerLawFit | None, int, str]:
        if not _top(view.trainset_size, self.profile, self.min_updates):
            needed = self.profile * (self.profile + 1) // 2
            reason = f"not measured: {self.profile} sizes need an epoch of at least {needed} examples"
            return None, max(1, view.trainset_size // self.min_updates), reason
        law = fit_power_law(delays)
        if law is None:
            sizes = ", ".join(map(str, delays))
            known = f"delays are known at batch size {sizes} only" if sizes else "no update so far took any time"
            reason = f"not fitted: {known}; the largest planned is taken"
            return None, max(view.planned, default=self.min_size), reason
        scale, exponent = law
        tau = self._tau(view, law)
        fit = PowerLawFit(scale, exponent, tau, plateau(scale, exponent, tau))
        if exponent <= 0:
            reason = f"larger batches save no time (α = {exponent:.3g}); the smallest measured is taken"
            return fit, min(delays), reason
        reason = (
            f"plateau {fit.plateau:.4g} of T(bs) = {scale:.4g} s · bs^(-{exponent:.3g}) "
            f"at τ = {tau:.3g} s an epoch, from {len(delays)} sizes"
        )
        return fit, math.floor(min(fit.plateau, _LARGEST)), reason

    def _tau(self, view: BatchView, law: tuple[float, float]) -> float:
        """Return τ by the law of the sizes measured first; by that of all of them where the first had no slope."""
        if self.tau is not None:
            return self.tau
        first: dict[int, float] = {}
        for count in range(1, len(view.measurements) + 1):
            first = epoch_delays(view.measurements[:count], view.trainset_size)
            if len(first) >= self.profile:
                break
        scale, exponent = fit_power_law(first) or law
        if exponent <= 0:
            scale, exponent = law
        return self.relative_tau * slope(scale, exponent, min(first))


def _top(trainset_size: int, count: int, min_updates: int) -> int:
    """Return the largest size to measure, or 0 where ``count`` sizes do not fit in one epoch.

    With ``count`` sizes of at most N / ``count`` each, their sum fits. A small trainset still measures 1, 2, …,
    ``count``, as long as these fit.
    """
    if count * (count + 1) // 2 > trainset_size:
        return 0
    return max(count, trainset_size // max(min_updates, count))


def next_size(taken: Collection[int], count: int, min_size: int, largest: int) -> int:
    """Return the next step up a geometric ladder of ``count`` sizes.

    Sizes go from small to large, so that the first lessons come soon. The first is a dozen, or a fifth of the largest
    where that is less; ``min_size`` at least, and less where ``count`` sizes would not fit. Each further step is
    planned from the largest size taken, so a rung that was cut short (by the end of an epoch, by a budget) moves the
    ones that follow.
    """
    if not taken:
        return max(1, min(max(min_size, min(_FEW, largest // _SPREAD)), largest - count + 1))
    reached, missing = max(taken), count - len(taken)
    if reached >= largest:
        return largest
    step = round(reached * (largest / reached) ** (1 / missing))
    # Room is kept below the top for the rungs that follow, and every rung is a new size.
    return max(reached + 1, min(step, largest - missing + 1))


def other_size(taken: Collection[int], least: int, limit: int) -> int | None:
    """Return the size from ``least`` to ``limit`` that is furthest, by ratio, from every size taken, if there is one.

    Used where the ladder cannot go on because a bound is in the way.
    """
    free = [size for size in range(least, limit + 1) if size not in taken]
    return max(free, key=lambda size: min((max(size / one, one / size) for one in taken), default=1.0), default=None)


def epoch_delays(measurements: Iterable[Measurement], trainset_size: int) -> dict[int, float]:
    """Return T(bs), the seconds an epoch takes, at every batch size that was measured, ascending.

    An epoch has ``trainset_size / bs`` updates, so T(bs) = seconds · N / bs. A size measured more than once counts with
    its median, which one slow straggler cannot move far. Updates that took no time (everything came from a cache) say
    nothing about the service and are left out.
    """
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for measured in measurements:
        if measured.batch_size >= 1 and math.isfinite(measured.seconds) and measured.seconds > 0:
            seconds[measured.batch_size].append(measured.seconds)
    delays = {size: statistics.median(seconds[size]) * trainset_size / size for size in sorted(seconds)}
    # Extreme seconds may leave the range of floats once they are scaled to an epoch.
    return {size: delay for size, delay in delays.items() if 0 < delay < math.inf}


def fit_power_law(delays: Mapping[int, float]) -> tuple[float, float] | None:
    """Fit T(bs) = A · bs^(−α) to seconds an epoch by batch size, both above 0 (Combee §3.3).

    Least squares on logarithms, where the law is a line: delays spread by a factor, not by seconds, so an error of 10 %
    weighs the same at every size. Returns A, seconds, and α; ``None`` with fewer than two sizes, or where one of them
    is not finite.
    """
    if len(delays) < 2:
        return None
    line = statistics.linear_regression([math.log(size) for size in delays], [math.log(one) for one in delays.values()])
    if not math.isfinite(line.slope) or not abs(line.intercept) <= _LOG_LIMIT:
        return None
    return math.exp(line.intercept), -line.slope


def slope(scale: float, exponent: float, size: float) -> float:
    """Return −T′(bs) = αA·bs^(−α−1), the seconds an epoch that one more example a batch saves; 0 where α ≤ 0."""
    if exponent <= 0:
        return 0.0
    return _exp(math.log(exponent) + math.log(scale) - (exponent + 1) * math.log(size))


def plateau(scale: float, exponent: float, tau: float) -> float:
    """Return bs = (αA/τ)^(1/(α+1)), not rounded, where one more example a batch saves τ (Combee §3.3).

    It solves −T′(bs) = τ: below it one more example saves more than τ, above it less. 0 where α ≤ 0, since then no
    batch is better than a smaller one.
    """
    if exponent <= 0 or tau <= 0:
        return 0.0
    return _exp((math.log(exponent) + math.log(scale) - math.log(tau)) / (exponent + 1))


def _exp(value: float) -> float:
    """Return exp(value), with ``value`` brought to where that is neither 0 nor infinite."""
    return math.exp(max(-_LOG_LIMIT, min(value, _LOG_LIMIT)))
