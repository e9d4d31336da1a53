"""The paper's controller: as large a batch as still saves time."""

from __future__ import annotations

import math
from typing import ClassVar

from combee_dspy.controllers import _profile
from combee_dspy.controllers._base import BatchController, BatchView
from combee_dspy.controllers._clamps import (
    apply,
    budget_bound,
    capacity_bound,
    context_bound,
    trainset_bound,
    updates_bound,
    variance_bound,
)
from combee_dspy.controllers._fit import epoch_delays, fit_power_law, plateau
from combee_dspy.controllers._validate import require_count, require_positive
from combee_dspy.records import BatchDecision, Clamp, PowerLawFit

__all__ = ["PowerLaw"]

# A plateau of a nearly flat law may exceed any integer that is worth writing down.
_LARGEST = 10**9


class PowerLaw(BatchController):
    """The last size at which one more example a batch still saves τ (Combee §3.3).

    T(bs), the seconds an epoch takes at batch size bs, is modelled as
    A·bs^(−α). Inside the first epoch at least three sizes are measured, from
    small to large. From then on each iteration fits A and α again to all
    delays measured (the median of each size) and picks the plateau
    bs = (αA/τ)^(1/(α+1)), rounded down, between ``min_size`` and the bounds.

    **What τ is relative to.** The paper gives 1.6 % and leaves open of what.
    Here it is the epoch's delay at the size itself: the plateau is where one
    more example a batch saves a share r of the epoch, −T′(bs) = r·T(bs), which is
    bs = α/r, whatever A is. With r = 0.016: 31 examples at α = 0.5, 50 at α = 0.8, 62 at
    α = 1. Relative to the delay at the smallest size measured, r would pick 12 to 14 examples whatever
    α is, a dozen of updates more than a joined scan needs. Give ``tau`` where seconds mean something to you.

    **Even batches.** What is left of an epoch is cut into batches of one size: five of 48 rather than
    four of 56 and one of 16, whose update would cost as much time as the others.

    **What is measured.** A geometric ladder of sizes from a dozen examples, or a fifth of the largest where that is
    less, up to N / ``min_updates``. Smaller batches would tell more about α if their children were not refused so
    often, which makes their iterations short: measured from 3 examples, α came out between 0.6 and 1.1 on one service.

    **Bounds.** Every bound that changes the size is kept as a clamp, in this
    order: ``min-size`` (the only one that raises it), ``trainset`` (N),
    ``epoch-updates`` (N / ``min_updates``), ``capacity`` (``waves`` times what
    runs at once), ``context`` (a two-level scan's calls must hold the
    reflections), ``variance`` (the mean score known to 0.05) and ``budget``.
    While sizes are measured, ``epoch-updates`` and ``variance`` do not cut.

    Args:
        tau: τ, seconds an epoch that one more example must save; ``None`` for ``relative_tau``.
        relative_tau: r, the same as a share of the epoch's delay at that size.
        profile: Distinct sizes measured inside the first epoch, at least 3.
        min_updates: Updates that an epoch keeps at least.
        min_size: Examples of the smallest batch, where trainset and bounds allow.
        waves: Full waves of rollouts a batch may take on what runs at once.
    """

    name: ClassVar[str] = "power-law"

    def __init__(
        self,
        tau: float | None = None,
        relative_tau: float = 0.016,
        profile: int = 3,
        min_updates: int = 4,
        min_size: int = 3,
        waves: int = 4,
    ) -> None:
        self.tau = tau
        self.relative_tau = relative_tau
        self.profile = profile
        self.min_updates = min_updates
        self.min_size = min_size
        self.waves = waves

    def validate(self) -> None:
        """Check the parameters before anything is spent.

        Raises:
            ArgumentTypeError: A parameter is no number.
            ArgumentValueError: A parameter is out of its range.
        """
        if self.tau is not None:
            require_positive("tau", self.tau, "seconds an epoch")
        require_positive("relative_tau", self.relative_tau, "a share of the epoch's delay, for example 0.016")
        # Two points fit any power law exactly; the third is the first to say whether it is one.
        require_count("profile", self.profile, 3)
        require_count("min_updates", self.min_updates, 1)
        require_count("min_size", self.min_size, 1)
        require_count("waves", self.waves, 1)

    def plan(self, view: BatchView) -> BatchDecision:
        """Return the next size to measure, or the plateau.

        Raises:
            ArgumentTypeError: See :meth:`validate`.
            ArgumentValueError: See :meth:`validate`.
        """
        self.validate()
        delays = epoch_delays(view.measurements, view.trainset_size)
        return self._profiled(view, delays) or self._chosen(view, delays)

    def _profiled(self, view: BatchView, delays: dict[int, float]) -> BatchDecision | None:
        largest = _profile.top(view.trainset_size, self.profile, self.min_updates)
        # Sizes planned count, not sizes measured: a good student's minibatches are skipped, and
        # a ladder that waited for their delays would stay on its first rung.
        taken = sorted({*view.planned, *delays})
        if not largest or len(taken) >= self.profile or view.seen >= view.trainset_size:
            return None
        smallest = _profile.bottom(largest, self.profile, self.min_size)
        wanted = _profile.next_size(taken, self.profile, smallest, largest)
        bounds = (trainset_bound(view), capacity_bound(view, self.waves), context_bound(view), budget_bound(view))
        size, clamps = apply(wanted, bounds)
        if size in taken:
            least = max(1, min(self.min_size, size - self.profile + 1))
            found = _profile.other_size(taken, least, size)
            if found is None:
                return None
            size = found
        reason = (
            f"measuring: size {len(taken) + 1} of {self.profile} inside the first epoch, "
            f"measured so far: {', '.join(map(str, delays)) or 'none'}"
        )
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
            context_bound(view),
            variance_bound(view, self.min_size),
            budget_bound(view),
        )
        size, clamps = apply(size, bounds)
        left = view.trainset_size - view.seen % view.trainset_size
        updates = -(-left // size)
        even = -(-left // updates)
        if self.min_size <= even < size:
            clamps += (
                Clamp("even", size, even, f"{left} examples are left of the epoch: {updates} batches of {even}"),
            )
            size = even
        return BatchDecision(size, reason, fit, raised + clamps)

    def _wanted(self, view: BatchView, delays: dict[int, float]) -> tuple[PowerLawFit | None, int, str]:
        if not _profile.top(view.trainset_size, self.profile, self.min_updates):
            size = updates_bound(view, self.min_updates).limit
            needed = self.profile * (self.profile + 1) // 2
            return None, size, f"not measured: {self.profile} sizes need an epoch of at least {needed} examples"
        if not delays:
            return None, self.min_size, "not fitted: no iteration so far took any time"
        smallest = min(delays)
        law = fit_power_law(delays)
        if law is None:
            measured = ", ".join(map(str, delays))
            return None, smallest, f"not fitted: delays are known at batch size {measured} only; it is taken"
        scale, exponent = law
        fit = self._fit(scale, exponent, smallest)
        if fit is None or exponent <= 0:
            return fit, smallest, f"larger batches save no time (α = {exponent:.3g}); the smallest measured is taken"
        reason = (
            f"plateau {fit.plateau:.4g} of T(bs) = {scale:.4g} s · bs^(-{exponent:.3g}) "
            f"at τ = {fit.tau:.3g} s an epoch, from {len(delays)} sizes"
        )
        return fit, math.floor(min(fit.plateau, _LARGEST)), reason

    def _fit(self, scale: float, exponent: float, smallest: int) -> PowerLawFit | None:
        if self.tau is not None:
            tau = float(self.tau)
        else:
            # Where larger batches save nothing there is no plateau, and the smallest size stands for it.
            at = math.log(exponent) - math.log(self.relative_tau) if exponent > 0 else math.log(smallest)
            log_tau = math.log(self.relative_tau) + math.log(scale) - exponent * at
            if abs(log_tau) > 700:  # math.exp would overflow
                return None
            tau = math.exp(log_tau)
        return PowerLawFit(scale, exponent, tau, plateau(scale, exponent, tau))
