"""How much one call keeps of what it is given: the law of one call, and its fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from combee_dspy.streams import derive_seed

__all__ = ["CallLaw", "CallLaws", "Fit", "Sample", "fit_law", "pooled"]

Floats = NDArray[np.float64]
Sizes = dict[tuple[int, int], list[int]]
"""What each call kept, by items and copies."""

_EDGE = 1e-9
_REPLICATES = 100
_TELLING = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One call, and what it kept.

    Attributes:
        items: m, the different things the call was given.
        copies: In how many places of the input each of those stands.
        retained: How many of them its answer holds.
    """

    items: int
    copies: int
    retained: int


@dataclass(frozen=True, slots=True)
class CallLaw:
    """The probability that one call keeps one of the things it is given.

    The simplest law that bends where prompts get crowded. A call takes in
    ``reads`` of its M entries, whichever, and puts out ``writes`` of the D
    different things it took in, whichever; each of them goes through with
    probability ``rate``:

        q = rate · (1 − Π_{j<x} (M − reads − j) / (M − j)) · min(1, writes / D)

    for a thing with x entries, with each factor of the product kept within
    [0, 1]. For x = 1 that is rate · min(1, c / m) with c the lower of the two
    limits: what is kept grows with the input up to c, then stays. Copies raise
    the odds of being read, not of being written.

    The form is an assumption: compare what it gives with :func:`pooled`, which assumes none.

    Attributes:
        rate: Probability below the limits, 0 to 1.
        reads: Entries taken in, above 0; infinite for no limit.
        writes: Different things put out, above 0; infinite for no limit.
    """

    rate: float = 1.0
    reads: float = math.inf
    writes: float = math.inf

    def q(self, items: float, copies: int = 1) -> float:
        """Return the chance of keeping one of ``items`` things with ``copies`` entries each."""
        read = self.read(items * copies, copies)
        return self.rate * read * min(1.0, self.writes / max(items * read, _EDGE))

    def read(self, entries: float, copies: int) -> float:
        """Return the probability that a thing with ``copies`` of all ``entries`` is taken in."""
        missed = 1.0
        for number in range(copies):
            left = max(entries - number, _EDGE)
            missed *= min(1.0, max(0.0, (entries - self.reads - number) / left))
        return 1.0 - missed


@dataclass(frozen=True, slots=True)
class Fit:
    """A law fitted to calls, with what is known about it.

    Attributes:
        law: The likeliest law. A limit above all sizes that were measured is reported as the
            largest of them.
        replicates: Laws fitted to bootstrap samples of the calls, for intervals.
    """

    law: CallLaw
    replicates: tuple[CallLaw, ...]

    def interval(self, items: int, copies: int = 1) -> tuple[float, float]:
        """Return the 95 % interval of q at a size."""
        low, high = np.quantile([law.q(items, copies) for law in self.replicates], (0.025, 0.975))
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class CallLaws:
    """The two kinds of call in a scan.

    Attributes:
        reads: Calls over reflections.
        merges: Calls over lists of lessons.
    """

    reads: Fit
    merges: Fit


def fit_law(samples: Sequence[Sample], *, replicates: int = _REPLICATES, seed: int = 0) -> Fit:
    """Fit the law of one call by maximum likelihood, what a call keeps counted as binomial.

    Where no sample has copies the two limits cannot be told apart, and one does for both.
    The interval is a parametric bootstrap: kept counts are drawn from the fitted law, and the law
    is fitted again. Where calls vary more than independent draws would, the draws are made as much
    rarer (quasi-likelihood). A fitted probability of 0 or 1 is drawn as (k + 1/2) / (n + 1), or it
    would have no interval at all.

    Args:
        samples: Calls of one kind, at least one, of two sizes or more for a useful law.
        replicates: Bootstrap samples, at least 2.
        seed: Where the draws come from.
    """
    sizes: Sizes = {}
    for sample in samples:
        sizes.setdefault((sample.items, sample.copies), []).append(sample.retained)
    total = np.array([items * len(calls) for (items, _), calls in sizes.items()], dtype=float)
    retained = np.array([sum(calls) for calls in sizes.values()], dtype=float)
    law = _likeliest(tuple(sizes), retained, total)
    dispersion = _dispersion(sizes, law)
    draws = np.maximum(1.0, np.round(total / dispersion))
    q = (np.array([law.q(*size) for size in sizes]) * draws + 0.5) / (draws + 1.0)
    generator = np.random.default_rng(derive_seed(seed, "retention", "bootstrap"))
    drawn = (generator.binomial(draws.astype(int), q).astype(float) for _ in range(replicates))
    laws = tuple(_likeliest(tuple(sizes), resampled, draws, near=law) for resampled in drawn)
    return Fit(law, laws)


def _likeliest(
    places: Sequence[tuple[int, int]], retained: Floats, total: Floats, near: CallLaw | None = None
) -> CallLaw:
    from scipy.optimize import minimize

    most = float(max(items * copies for items, copies in places))
    widest = float(max(items for items, _ in places))
    separate = any(copies > 1 for _, copies in places)
    bounds = [
        (_EDGE, 1.0),
        (0.0, math.log(most) + _EDGE),
        *([(0.0, math.log(widest) + _EDGE)] * separate),
    ]

    def law(point: Sequence[float]) -> CallLaw:
        return CallLaw(
            float(point[0]), math.exp(point[1]), math.exp(point[2]) if separate else math.inf
        )

    def loss(point: Sequence[float]) -> float:
        candidate = law(point)
        q = np.clip([candidate.q(items, copies) for items, copies in places], _EDGE, 1.0 - _EDGE)
        return float(-(np.log(q) * retained + np.log1p(-q) * (total - retained)).sum())

    starts = _starts(bounds) if near is None else [_point(near, separate)]
    # The likelihood has a kink at each limit: several starts, and no derivatives.
    best = sorted(starts, key=loss)[:3]
    fits = [
        minimize(
            loss, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-3, "fatol": 1e-3}
        )
        for start in best
    ]
    return law(min(fits, key=lambda fit: float(fit.fun)).x)


def _starts(bounds: Sequence[tuple[float, float]]) -> list[list[float]]:
    rates = [0.25, 0.5, 0.75, 1.0]
    axes = [[high * step / 8 for step in range(9)] for _, high in bounds[1:]]
    points = [[rate, read] for rate in rates for read in axes[0]]
    return [[*point, write] for point in points for write in axes[1]] if len(axes) > 1 else points


def _point(law: CallLaw, separate: bool) -> list[float]:
    return [law.rate, math.log(max(law.reads, 1.0)), *([math.log(max(law.writes, 1.0))] * separate)]


def _dispersion(sizes: Sizes, law: CallLaw) -> float:
    """Return Pearson's ratio of the variance between calls to that of draws, at least 1."""
    pearson, telling = 0.0, 0
    for (items, copies), calls in sizes.items():
        mean = items * law.q(items, copies)
        variance = mean * (1.0 - mean / items)
        # Where the law is certain, a deviation says that it is wrong, not that calls vary.
        if variance > _TELLING:
            pearson += sum((retained - mean) ** 2 / variance for retained in calls)
            telling += len(calls)
    free = telling - (3 if any(copies > 1 for _, copies in sizes) else 2)
    return max(1.0, pearson / free) if free > 0 else 1.0


def pooled(samples: Sequence[Sample]) -> dict[tuple[int, int], tuple[int, int, float, float]]:
    """Return what was kept at every size, with no law assumed.

    Returns:
        ``(items, copies)`` to kept, total and the Wilson 95 % interval of their ratio, in ascending
        order.
    """
    from scipy.stats import binomtest

    counts: dict[tuple[int, int], tuple[int, int]] = {}
    for sample in sorted(samples, key=lambda item: (item.copies, item.items)):
        retained, total = counts.get((sample.items, sample.copies), (0, 0))
        counts[sample.items, sample.copies] = (retained + sample.retained, total + sample.items)
    result = {}
    for size, (retained, total) in counts.items():
        interval = binomtest(retained, total).proportion_ci(method="wilson")
        result[size] = (retained, total, float(interval.low), float(interval.high))
    return result
