"""Fitting the law of one call to calls that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.retention._law import Floats, RetentionFit, RetentionLaw, RetentionSample, keep_probabilities
from combee_dspy.retention._simplex import Rows, minimised
from combee_dspy.streams import derive_seed

__all__ = ["fit_retention", "pooled_retention"]

_EDGE = 1e-9
_GRID = 48
_RATES = 16
_REPLICATES = 200
_TELLING = 0.05
_ROOM = 1e-3
_EQUAL = 1e-3


def fit_retention(samples: Sequence[RetentionSample], *, replicates: int = _REPLICATES, seed: int = 0) -> RetentionFit:
    """Fit the law of one call by maximum likelihood.

    What a call keeps counts as binomial. The likelihood has a kink at each
    limit, so a simplex search starts at the best point of a grid. Where
    no sample has copies the two limits cannot be told apart, and one does for
    both. A limit above all measured sizes is reported as the largest size.

    The interval is a parametric bootstrap: kept counts are drawn from the
    fitted law, the law is fitted again. Where calls vary more than independent
    draws would, the draws are made as much rarer (quasi-likelihood). A fitted
    probability of 0 or 1 is drawn as (k + 1/2) / (n + 1), or it would have no
    interval at all.

    Args:
        samples: Calls of one kind, of two sizes or more for a useful law.
        replicates: Bootstrap samples, at least 2.
        seed: Where the draws come from.

    Raises:
        ArgumentValueError: There is no sample, a sample's numbers contradict each
            other, or ``replicates`` is below 2.
    """
    _check(samples, replicates)
    # Counts of one size and one q add up to one binomial: the likelihood needs no more.
    sizes = _merged(samples)
    problem = _Problem.of(sizes)
    total = np.array([one.total for one in sizes], dtype=float)
    best = problem.solved(np.array([one.kept for one in sizes], dtype=float), total)
    q = problem.keep(best[None, :])[0]
    dispersion = _dispersion(samples, sizes, q, problem.parameters)
    free = len(sizes) - problem.parameters
    misfit = _misfit(sizes, q, dispersion, free) if free > 0 else None
    stream = np.random.default_rng(derive_seed(seed, "retention", "bootstrap"))
    draws = np.maximum(1.0, np.round(total / dispersion))
    drawn_from = (q * draws + 0.5) / (draws + 1.0)
    drawn = np.stack([stream.binomial(draws.astype(int), drawn_from).astype(float) for _ in range(replicates)])
    laws = tuple(problem.law(point) for point in problem.refined(np.tile(best, (replicates, 1)), drawn, draws))
    largest = max(sample.entries for sample in samples)
    return RetentionFit(problem.law(best), laws, largest, dispersion, misfit, len(samples))


def pooled_retention(samples: Sequence[RetentionSample]) -> dict[tuple[int, int], tuple[int, int, float, float]]:
    """Return what was kept at every size, with no law assumed.

    Returns:
        ``(items, copies)`` to kept, total and the Wilson 95 % interval of their ratio, in ascending order.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for sample in sorted(samples, key=lambda one: (one.copies, one.items)):
        kept, total = found.get((sample.items, sample.copies), (0, 0))
        found[sample.items, sample.copies] = (kept + sample.kept, total + sample.total)
    return {size: (kept, total, *_wilson(kept, total)) for size, (kept, total) in found.items()}


@dataclass(frozen=True, slots=True)
class _Problem:
    """The samples as arrays, and the bounds of the parameters (rate, log reads, log writes)."""

    items: Floats
    entries: Floats
    copies: tuple[int, ...]
    separate: bool

    @classmethod
    def of(cls, samples: Sequence[RetentionSample]) -> _Problem:
        copies = tuple(sample.copies for sample in samples)
        return cls(
            np.array([sample.items for sample in samples], dtype=float),
            np.array([sample.entries for sample in samples], dtype=float),
            copies,
            max(copies) > 1,
        )

    @property
    def parameters(self) -> int:
        return 3 if self.separate else 2

    def law(self, point: Floats) -> RetentionLaw:
        rate, reads, writes = (float(value) for value in self.natural(point[None, :])[0])
        return RetentionLaw(rate, reads, writes)

    def natural(self, points: Floats) -> Floats:
        top = np.log([self.entries.max(), self.items.max()])
        limits = np.exp(np.clip(points[:, 1:], 0.0, top[: points.shape[1] - 1]))
        rates = np.clip(points[:, :1], _EDGE, 1.0)
        last = limits[:, 1:] if self.separate else np.full_like(rates, math.inf)
        return np.hstack([rates, limits[:, :1], last])

    def keep(self, points: Floats) -> Floats:
        return keep_probabilities(self.natural(points), self.items, self.entries, self.copies)

    def grid(self) -> Floats:
        rates = np.linspace(1.0 / _RATES, 1.0, _RATES)
        reads = np.linspace(0.0, math.log(self.entries.max()), _GRID)
        axes = [rates, reads]
        if self.separate:
            axes.append(np.linspace(0.0, math.log(self.items.max()), _GRID // 2))
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))

    def loss(self, points: Floats, kept: Floats, total: Floats) -> Floats:
        """Return the negative log-likelihood of each point.

        Args:
            points: One row a point.
            kept: What was kept, one row a point or one row for all.
            total: What was looked at.
        """
        q = np.clip(self.keep(points), _EDGE, 1.0 - _EDGE)
        result: Floats = -(np.log(q) * kept + np.log1p(-q) * (total - kept)).sum(axis=1)
        return result

    def solved(self, kept: Floats, total: Floats) -> Floats:
        """Return the likeliest point."""
        grid = self.grid()
        losses = self.loss(grid, kept, total)
        # One limit out of the way, then the other: where the calls cannot tell, a limit is no limit.
        tops = [np.isclose(grid[:, axis], grid[:, axis].max()) for axis in range(grid.shape[1] - 1, 0, -1)]
        starts = [grid[int(np.where(held, losses, np.inf).argmin())] for held in (losses < np.inf, *tops)]
        found = self.refined(np.stack(starts), np.tile(kept, (len(starts), 1)), total)
        reached = self.loss(found, kept, total)
        best: Floats = found[int(np.flatnonzero(reached <= reached.min() + _EQUAL)[-1])]
        return best

    def refined(self, starts: Floats, kept: Floats, total: Floats) -> Floats:
        """Return the likeliest point for each row of ``kept``, searched from the same row of ``starts``."""

        def loss(points: Floats, numbers: Rows) -> Floats:
            return self.loss(points, kept[numbers], total)

        tops = [float(np.log(self.entries.max())), float(np.log(self.items.max()))][: starts.shape[1] - 1]
        # Where all sizes are 1 there is no limit to find, but bounds must leave room for a simplex.
        upper = np.array([1.0, *(max(top, _ROOM) for top in tops)])
        return minimised(loss, starts, np.array([_EDGE, *(0.0 for _ in tops)]), upper)


def _check(samples: Sequence[RetentionSample], replicates: int) -> None:
    if not samples:
        raise ArgumentValueError("samples", (), "is empty", "Measure at least one call.")
    for sample in samples:
        if not 0 <= sample.kept <= sample.total or min(sample.total, sample.items, sample.copies) < 1:
            remedy = "Give 0 <= kept <= total; items, total and copies at least 1."
            raise ArgumentValueError("samples", sample, "contradicts itself", remedy)
    if replicates < 2:
        raise ArgumentValueError("replicates", replicates, "is below 2", "200 is the default.")


def _dispersion(
    samples: Sequence[RetentionSample], sizes: Sequence[RetentionSample], q: Floats, parameters: int
) -> float:
    """Return Pearson's ratio of the variance between calls to that of independent draws, at least 1."""
    expected = {_size(one): float(value) for one, value in zip(sizes, q, strict=True)}
    pearson, telling = 0.0, 0
    for sample in samples:
        mean = sample.total * expected[_size(sample)]
        variance = mean * (1.0 - mean / sample.total)
        # Where the law is certain, a deviation says that it is wrong, not that calls vary.
        if variance > _TELLING:
            pearson += (sample.kept - mean) ** 2 / variance
            telling += 1
    return max(1.0, pearson / (telling - parameters)) if telling > parameters else 1.0


def _misfit(sizes: Sequence[RetentionSample], q: Floats, dispersion: float, free: int) -> float:
    deviance = 0.0
    for one, value in zip(sizes, q, strict=True):
        own = one.kept / one.total
        likely = min(max(float(value), _EDGE), 1.0 - _EDGE)
        lost = one.total - one.kept
        deviance += 2.0 * (one.kept * _log_ratio(own, likely) + lost * _log_ratio(1.0 - own, 1.0 - likely))
    return _above(max(0.0, deviance) / dispersion, free)


def _above(value: float, free: int) -> float:
    """Return the probability that a chi-squared variable of so many degrees of freedom is higher.

    The regularised upper incomplete gamma function of half the degrees, which is a finite sum for
    whole and half numbers (Abramowitz & Stegun, 6.5.22). Importing scipy for it takes seconds.
    """
    half = value / 2.0
    if half <= 0:
        return 1.0
    place = 0.5 if free % 2 else 1.0
    found = math.erfc(math.sqrt(half)) if free % 2 else math.exp(-half)
    while place < free / 2.0:
        found += math.exp(place * math.log(half) - half - math.lgamma(place + 1.0))
        place += 1.0
    return min(1.0, found)


def _log_ratio(own: float, likely: float) -> float:
    return math.log(own / likely) if own > 0 else 0.0


def _size(sample: RetentionSample) -> tuple[int, int, int]:
    return (sample.items, sample.copies, sample.entries)


def _merged(samples: Sequence[RetentionSample]) -> list[RetentionSample]:
    """Return one sample per size; its counts may pass its items, being those of several calls."""
    counts: dict[tuple[int, int, int], tuple[int, int]] = {}
    for sample in samples:
        kept, total = counts.get(_size(sample), (0, 0))
        counts[_size(sample)] = (kept + sample.kept, total + sample.total)
    return [RetentionSample(m, kept, total, x, lines) for (m, x, lines), (kept, total) in sorted(counts.items())]


def _wilson(kept: int, total: int) -> tuple[float, float]:
    """Return the ends of Wilson's score interval (1927), exactly 0 and 1 where nothing or all was kept."""
    z = NormalDist().inv_cdf(0.975)
    share, weight = kept / total, 1.0 + z * z / total
    centre = (share + z * z / (2 * total)) / weight
    reach = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / weight
    return (0.0 if kept == 0 else centre - reach, 1.0 if kept == total else centre + reach)
