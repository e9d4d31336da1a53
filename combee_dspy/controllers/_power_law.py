"""The paper's controller: as large a batch as still saves time."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.controllers._base import (
    BatchController,
    BatchView,
    budget_bound,
    capacity_bound,
    clamp,
    trainset_bound,
    turns_bound,
    updates_bound,
    variance_bound,
)
from combee_dspy.controllers._fits import DelayLaw, epoch_delays, fit_power_law
from combee_dspy.records import BatchDecision, Clamp, PowerLawFit
from combee_dspy.strategies import parameters

# A plateau of a nearly flat law may exceed any integer that is worth writing down.
_LARGEST = 10**9
# Two sizes fit any power law exactly; the third is the first to say whether it is one.
_SIZES = 3
# Sizes nearer to each other than that tell noise from a law no more.
_APART = 1.5
# As long as nobody knows how many requests a service takes: few waves for a small one, and it fills
# most.
_UNKNOWN = 64
_Count = Annotated[int, Field(ge=1)]


@parameters
class PowerLaw(BatchController):
    """The last size at which one more example a batch still saves τ (Combee §3.3).

    T(bs), the seconds an epoch takes at batch size bs, is modelled as A·bs^(−α). Each update fits A
    and α again to all delays measured (the median of each size) and picks the plateau bs =
    (αA/τ)^(1/(α+1)), rounded down, between ``min_size`` and the bounds.

    **What τ is relative to.** The paper gives 1.6 % and leaves open of what. Here it is the slope
    of the law at b₀, τ = r·αA·b₀^(−α−1), fixed once three sizes are measured. The plateau is then
    b₀·(1/r)^(1/(α+1)): with r = 0.016, 15.7 times b₀ at α = 0.5, 9.9 times at α = 0.8, 7.9 times at
    α = 1; b₀ of 5 or 10 gives 40 to 158, and the paper reports picks of 64 to 94. Give ``tau``
    where seconds mean something to you. ``docs/results/speed.md`` shows how much hangs on r and α.

    **What is measured.** What runs. The first batch fills the service. Where an epoch has room for
    larger ones, two more sizes up to the largest allowed follow, the one furthest from the others
    first. Where it has not, all batches are as large as allowed, and no law is fitted: with 64 in
    flight that is below 384 rows (288 with three updates an epoch), with 8 below 60 (45). With
    ``profile``, which ``tau`` implies, that many sizes are measured from b₀ up instead, as in the
    paper: a third of the first epoch goes into batches that leave a service idle.

    **Even batches.** What is left of an epoch is cut into batches of one size: five of 48 rather
    than four of 56 and one of 16, whose update would cost as much time as the others.

    **Bounds.** Every bound that changes the size is kept as a clamp, in this order: ``min-size``
    (the only one that raises it), ``trainset`` (N), ``epoch-updates`` (N / ``min_updates``),
    ``capacity`` (``waves`` times what runs at once), ``variance`` (the mean score known to 0.05),
    ``turns`` (a share of the budget for each component that no update has taught), ``budget`` and
    ``even``. While sizes are measured, ``variance`` does not cut.

    Example:
        >>> from combee_dspy.controllers import BatchView, PowerLaw
        >>> PowerLaw(min_updates=8).plan(BatchView(update=0, trainset_size=240, workers=8)).size
        10

    Args:
        tau: τ, seconds an epoch that one more example must save; ``None`` for ``relative_tau``.
        relative_tau: r, the same as a share of the law's slope at b₀.
        base: b₀, where a profile begins; the smallest size measured takes its place where there is
            a profile.
        profile: Distinct sizes measured from b₀ up inside the first epoch; ``None`` for what runs,
            or 3 with ``tau``.
        min_updates: Updates that an epoch keeps at least.
        min_size: Examples of the smallest batch, where trainset and bounds allow.
        waves: Full waves of rollouts a batch may take on what runs at once.
    """

    name: ClassVar[str] = "power-law"
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    relative_tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.016
    base: _Count = 10
    profile: Annotated[int, Field(ge=_SIZES)] | None = None
    min_updates: _Count = 4
    min_size: _Count = 3
    waves: _Count = 4

    def plan(self, view: BatchView) -> BatchDecision:
        """Return the next size to measure, or the plateau."""
        count = self.profile or (_SIZES if self.tau is not None else None)
        measuring = self._fill(view) if count is None else self._profile(view, count)
        return measuring or self._choose(view)

    def _fill(self, view: BatchView) -> BatchDecision | None:
        """Return a size between what fills the service and the largest allowed."""
        at_once = min(view.workers, _UNKNOWN if view.capacity is None else view.capacity)
        bounds = (
            updates_bound(view, self.min_updates),
            capacity_bound(view, self.waves),
            turns_bound(view),
            budget_bound(view),
        )
        largest, _ = clamp(view.trainset_size, bounds)
        first, sizes = (
            max(self.base, at_once),
            {*view.planned, *(measurement.batch_size for measurement in view.measurements)},
        )
        if len(sizes) >= _SIZES or first * _APART > largest or view.seen >= view.trainset_size:
            return None
        ladder = (first, round(math.sqrt(first * largest)), largest)
        size = max(ladder, key=lambda measurement: _distance(measurement, sizes))
        if size in sizes:
            return None  # between two small numbers there is no third
        reason = (
            f"measuring: size {len(sizes) + 1} of {_SIZES}, from the {first} that fill the service"
            f" to {largest}"
        )
        return BatchDecision(size, reason)

    def _profile(self, view: BatchView, count: int) -> BatchDecision | None:
        largest = _top(view.trainset_size, count, self.min_updates)
        # Sizes planned count, not sizes measured: a good student's minibatches are skipped, and
        # a ladder that waited for their delays would stay on its first rung.
        sizes = {*view.planned, *(measurement.batch_size for measurement in view.measurements)}
        if not largest or len(sizes) >= count or view.seen >= view.trainset_size:
            return None
        wanted = next_size(sizes, count, max(self.min_size, min(self.base, largest // 5)), largest)
        bounds = (
            trainset_bound(view),
            capacity_bound(view, self.waves),
            turns_bound(view),
            budget_bound(view),
        )
        size, clamps = clamp(wanted, bounds)
        if size in sizes:
            other = other_size(sizes, max(1, min(self.min_size, size - count + 1)), size)
            if other is None:
                return None
            size = other
        reason = (
            f"measuring: size {len(sizes) + 1} of {count} from {min(sizes, default=size)} up in the"
            " first epoch"
        )
        return BatchDecision(size, reason, clamps=clamps)

    def _choose(self, view: BatchView) -> BatchDecision:
        fit, size, reason = self._fit(view)
        raised: tuple[Clamp, ...] = ()
        if size < self.min_size:
            raised = (
                Clamp("min-size", size, self.min_size, f"no batch below {self.min_size} examples"),
            )
            size = self.min_size
        bounds = (
            trainset_bound(view),
            updates_bound(view, self.min_updates),
            capacity_bound(view, self.waves),
            variance_bound(view, self.min_size),
            turns_bound(view),
            budget_bound(view),
        )
        size, clamps = clamp(size, bounds)
        left = view.trainset_size - view.seen % view.trainset_size
        updates = -(-left // size)
        even = -(-left // updates)
        if self.min_size <= even < size:
            why = f"{left} examples are left of the epoch: {updates} batches of {even}"
            clamps += (Clamp("even", size, even, why),)
            size = even
        return BatchDecision(size, reason, fit, raised + clamps)

    def _fit(self, view: BatchView) -> tuple[PowerLawFit | None, int, str]:
        delays = epoch_delays(view.measurements, view.trainset_size)
        law = fit_power_law(delays)
        if law is None or max(delays) < _APART * min(delays):
            measured = (
                f"delays are known at batch size {', '.join(map(str, delays))} only"
                if delays
                else "no delay is known"
            )
            reason = f"not fitted: {measured}; as large as the bounds allow"
            return None, view.trainset_size, reason
        tau = self._tau(view, law)
        fit = PowerLawFit(law.scale, law.exponent, tau, law.plateau(tau))
        if law.exponent <= 0:
            reason = (
                f"larger batches save no time (α = {law.exponent:.3g}); the smallest measured is"
                " taken"
            )
            return fit, min(delays), reason
        reason = (
            f"plateau {fit.plateau:.4g} of T(bs) = {law.scale:.4g} s ·"
            f" bs^(-{law.exponent:.3g}) at τ = {tau:.3g} s an epoch, from {len(delays)}"
            " sizes"
        )
        return fit, math.floor(min(fit.plateau, _LARGEST)), reason

    def _tau(self, view: BatchView, law: DelayLaw) -> float:
        """Return τ by the law of the first sizes, or of all sizes where the first had no slope."""
        if self.tau is not None:
            return self.tau
        first: dict[int, float] = {}
        for count in range(1, len(view.measurements) + 1):
            first = epoch_delays(view.measurements[:count], view.trainset_size)
            if len(first) >= (self.profile or _SIZES):
                break
        fixed = fit_power_law(first) or law
        if fixed.exponent <= 0:
            fixed = law
        return self.relative_tau * fixed.slope(min(first) if self.profile else self.base)


def _distance(size: int, sizes: Collection[int]) -> float:
    """Return by what ratio a size is away from the nearest one taken."""
    return min((max(size / other, other / size) for other in sizes), default=math.inf)


def _top(trainset_size: int, count: int, min_updates: int) -> int:
    """Return the largest size to measure, or 0 where ``count`` sizes do not fit in one epoch.

    With ``count`` sizes of at most N / ``count`` each, their sum fits. A small trainset still
    measures 1, 2, …, ``count``, as long as these fit.
    """
    if count * (count + 1) // 2 > trainset_size:
        return 0
    return max(count, trainset_size // max(min_updates, count))


def next_size(sizes: Collection[int], count: int, first: int, largest: int) -> int:
    """Return the next step up a geometric ladder of ``count`` sizes.

    Sizes go from ``first``, less where ``count`` sizes would not fit, to large, so that the first
    lessons come soon. Each further step is planned from the largest size taken, so a rung that was
    cut short (by the end of an epoch, by a budget) moves the ones that follow.
    """
    if not sizes:
        return max(1, min(first, largest - count + 1))
    reached, missing = max(sizes), count - len(sizes)
    if reached >= largest:
        return largest
    step = round(reached * (largest / reached) ** (1 / missing))
    # Room is kept below the top for the rungs that follow, and every rung is a new size.
    return max(reached + 1, min(step, largest - missing + 1))


def other_size(sizes: Collection[int], least: int, limit: int) -> int | None:
    """Return the size within limits that is furthest by ratio from all others, if any.

    Used where the ladder cannot go on because a bound is in the way.
    """
    free = [size for size in range(least, limit + 1) if size not in sizes]
    return max(free, key=lambda size: _distance(size, sizes), default=None)
