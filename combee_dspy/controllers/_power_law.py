"""The paper's controller: as large a batch as still saves time."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.controllers import _clamps, _ladder
from combee_dspy.controllers._base import BatchController, BatchView
from combee_dspy.controllers._fit import epoch_delays, fit_power_law, plateau, slope
from combee_dspy.records import BatchDecision, Clamp, PowerLawFit
from combee_dspy.strategies import parameters

__all__ = ["PowerLaw"]

# A plateau of a nearly flat law may exceed any integer that is worth writing down.
_LARGEST = 10**9
_Count = Annotated[int, Field(ge=1)]


@parameters
class PowerLaw(BatchController):
    """The last size at which one more example a batch still saves τ (Combee §3.3).

    T(bs), the seconds an epoch takes at batch size bs, is modelled as
    A·bs^(−α). Inside the first epoch at least three sizes are measured, from
    small to large. From then on each update fits A and α again to all
    delays measured (the median of each size) and picks the plateau
    bs = (αA/τ)^(1/(α+1)), rounded down, between ``min_size`` and the bounds.

    **What τ is relative to.** The paper gives 1.6 % and leaves open of what. Here it is the slope of the law at b0,
    the smallest size measured: τ = r·αA·b0^(−α−1), fixed once the sizes are measured. The plateau is then
    b0·(1/r)^(1/(α+1)): with r = 0.016, 15.7 times the smallest size at α = 0.5, 9.9 times at α = 0.8, 7.9 times at
    α = 1. Give ``tau`` where seconds mean something to you.

    **Even batches.** What is left of an epoch is cut into batches of one size: five of 48 rather than
    four of 56 and one of 16, whose update would cost as much time as the others.

    **What is measured.** A geometric ladder of sizes from a dozen examples, or a fifth of the largest where that is
    less, up to N / ``min_updates``.

    **Bounds.** Every bound that changes the size is kept as a clamp, in this
    order: ``min-size`` (the only one that raises it), ``trainset`` (N),
    ``epoch-updates`` (N / ``min_updates``), ``capacity`` (``waves`` times what
    runs at once), ``context`` (a two-level scan's calls must hold the
    reflections), ``variance`` (the mean score known to 0.05), ``budget`` and ``even``.
    While sizes are measured, ``epoch-updates`` and ``variance`` do not cut.

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
        largest = _ladder.top(view.trainset_size, self.profile, self.min_updates)
        # Sizes planned count, not sizes measured: a good student's minibatches are skipped, and
        # a ladder that waited for their delays would stay on its first rung.
        taken = {*view.planned, *delays}
        if not largest or len(taken) >= self.profile or view.seen >= view.trainset_size:
            return None
        smallest = _ladder.bottom(largest, self.profile, self.min_size)
        wanted = _ladder.next_size(taken, self.profile, smallest, largest)
        bounds = (_clamps.trainset(view), _clamps.capacity(view, self.waves))
        size, clamps = _clamps.apply(wanted, (*bounds, _clamps.context(view), _clamps.budget(view)))
        if size in taken:
            least = max(1, min(self.min_size, size - self.profile + 1))
            found = _ladder.other_size(taken, least, size)
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
            _clamps.trainset(view),
            _clamps.updates(view, self.min_updates),
            _clamps.capacity(view, self.waves),
            _clamps.context(view),
            _clamps.variance(view, self.min_size),
            _clamps.budget(view),
        )
        size, clamps = _clamps.apply(size, bounds)
        left = view.trainset_size - view.seen % view.trainset_size
        updates = -(-left // size)
        even = -(-left // updates)
        if self.min_size <= even < size:
            why = f"{left} examples are left of the epoch: {updates} batches of {even}"
            clamps += (Clamp("even", size, even, why),)
            size = even
        return BatchDecision(size, reason, fit, raised + clamps)

    def _wanted(self, view: BatchView, delays: dict[int, float]) -> tuple[PowerLawFit | None, int, str]:
        if not _ladder.top(view.trainset_size, self.profile, self.min_updates):
            needed = self.profile * (self.profile + 1) // 2
            reason = f"not measured: {self.profile} sizes need an epoch of at least {needed} examples"
            return None, max(1, view.trainset_size // self.min_updates), reason
        law = fit_power_law(delays)
        if law is None:
            known = f"delays are known at batch size {', '.join(map(str, delays))} only"
            reason = (
                f"not fitted: {known if delays else 'no update so far took any time'}; the largest planned is taken"
            )
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
        first = self._first(view)
        scale, exponent = fit_power_law(first) or law
        if exponent <= 0:
            scale, exponent = law
        return self.relative_tau * slope(scale, exponent, min(first))

    def _first(self, view: BatchView) -> dict[int, float]:
        """Return the delays as they were when the profile was complete; all of them where it is not."""
        delays: dict[int, float] = {}
        for count in range(1, len(view.measurements) + 1):
            delays = epoch_delays(view.measurements[:count], view.trainset_size)
            if len(delays) >= self.profile:
                break
        return delays
