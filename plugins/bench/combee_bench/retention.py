"""How much one call keeps of what it is given: the law of one call, its fit, and what a whole scan then keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from combee_dspy.aggregators import even_runs, shard_count
from combee_dspy.shuffle import plan_shards
from combee_dspy.streams import derive, derive_seed

__all__ = [
    "Fit",
    "Law",
    "Laws",
    "Plan",
    "Sample",
    "Survival",
    "fit_law",
    "plan_scan",
    "pooled",
    "predicted_survival",
]

Floats = NDArray[np.float64]

_EDGE = 1e-9
_REPLICATES = 100
_TELLING = 0.05

Sizes = dict[tuple[int, int], list[int]]
"""What each call kept, by items and copies."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call, and what it kept.

    Attributes:
        items: m, the different things the call was given.
        copies: In how many places of the input each of those stands.
        kept: How many of them its answer holds.
    """

    items: int
    copies: int
    kept: int


@dataclass(frozen=True, slots=True)
class Law:
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

    The form is an assumption; :attr:`Fit.misfit` says whether the calls that were measured contradict it.

    Attributes:
        rate: Probability below the limits, 0 to 1.
        reads: Entries taken in, above 0; infinite for no limit.
        writes: Different things put out, above 0; infinite for no limit.
    """

    rate: float = 1.0
    reads: float = math.inf
    writes: float = math.inf

    def q(self, items: float, copies: int = 1) -> float:
        """Return the probability of keeping one of ``items`` different things with ``copies`` entries each."""
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
        law: The likeliest law. A limit above all sizes that were measured is reported as the largest of them.
        replicates: Laws fitted to bootstrap samples of the calls, for intervals.
        misfit: p-value of the deviance from the best law that has a q for each size of its own; below 0.01 the
            law's form is contradicted. ``None`` with too few sizes to tell.
    """

    law: Law
    replicates: tuple[Law, ...]
    misfit: float | None

    def interval(self, items: int, copies: int = 1) -> tuple[float, float]:
        """Return the 95 % interval of q at a size."""
        low, high = np.quantile([law.q(items, copies) for law in self.replicates], (0.025, 0.975))
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Laws:
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
    The interval is a parametric bootstrap: kept counts are drawn from the fitted law, and the law is
    fitted again. Where calls vary more than independent draws would, the draws are made as much rarer
    (quasi-likelihood). A fitted probability of 0 or 1 is drawn as (k + 1/2) / (n + 1), or it would have no
    interval at all.

    Args:
        samples: Calls of one kind, at least one, of two sizes or more for a useful law.
        replicates: Bootstrap samples, at least 2.
        seed: Where the draws come from.
    """
    sizes: Sizes = {}
    for sample in samples:
        sizes.setdefault((sample.items, sample.copies), []).append(sample.kept)
    total = np.array([items * len(calls) for (items, _), calls in sizes.items()], dtype=float)
    kept = np.array([sum(calls) for calls in sizes.values()], dtype=float)
    law = _likeliest(tuple(sizes), kept, total)
    dispersion = _dispersion(sizes, law)
    draws = np.maximum(1.0, np.round(total / dispersion))
    q = (np.array([law.q(*size) for size in sizes]) * draws + 0.5) / (draws + 1.0)
    generator = np.random.default_rng(derive_seed(seed, "retention", "bootstrap"))
    drawn = (generator.binomial(draws.astype(int), q).astype(float) for _ in range(replicates))
    laws = tuple(_likeliest(tuple(sizes), one, draws, near=law) for one in drawn)
    return Fit(law, laws, _misfit(sizes, law, dispersion))


def _likeliest(places: Sequence[tuple[int, int]], kept: Floats, total: Floats, near: Law | None = None) -> Law:
    from scipy.optimize import minimize

    most = float(max(items * copies for items, copies in places))
    widest = float(max(items for items, _ in places))
    separate = any(copies > 1 for _, copies in places)
    bounds = [(_EDGE, 1.0), (0.0, math.log(most) + _EDGE), *([(0.0, math.log(widest) + _EDGE)] * separate)]

    def law(point: Sequence[float]) -> Law:
        return Law(float(point[0]), math.exp(point[1]), math.exp(point[2]) if separate else math.inf)

    def loss(point: Sequence[float]) -> float:
        one = law(point)
        q = np.clip([one.q(items, copies) for items, copies in places], _EDGE, 1.0 - _EDGE)
        return float(-(np.log(q) * kept + np.log1p(-q) * (total - kept)).sum())

    starts = _starts(bounds) if near is None else [_point(near, separate)]
    # The likelihood has a kink at each limit: several starts, and no derivatives.
    best = sorted(starts, key=loss)[:3]
    found = [
        minimize(loss, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-3, "fatol": 1e-3})
        for start in best
    ]
    return law(min(found, key=lambda one: float(one.fun)).x)


def _starts(bounds: Sequence[tuple[float, float]]) -> list[list[float]]:
    rates = [0.25, 0.5, 0.75, 1.0]
    axes = [[high * step / 8 for step in range(9)] for _, high in bounds[1:]]
    points = [[rate, read] for rate in rates for read in axes[0]]
    return [[*point, write] for point in points for write in axes[1]] if len(axes) > 1 else points


def _point(law: Law, separate: bool) -> list[float]:
    return [law.rate, math.log(max(law.reads, 1.0)), *([math.log(max(law.writes, 1.0))] * separate)]


def _parameters(sizes: Sizes) -> int:
    return 3 if any(copies > 1 for _, copies in sizes) else 2


def _dispersion(sizes: Sizes, law: Law) -> float:
    """Return Pearson's ratio of the variance between calls to that of independent draws, at least 1."""
    pearson, telling = 0.0, 0
    for (items, copies), calls in sizes.items():
        mean = items * law.q(items, copies)
        variance = mean * (1.0 - mean / items)
        # Where the law is certain, a deviation says that it is wrong, not that calls vary.
        if variance > _TELLING:
            pearson += sum((kept - mean) ** 2 / variance for kept in calls)
            telling += len(calls)
    free = telling - _parameters(sizes)
    return max(1.0, pearson / free) if free > 0 else 1.0


def _misfit(sizes: Sizes, law: Law, dispersion: float) -> float | None:
    from scipy.stats import chi2

    free = len(sizes) - _parameters(sizes)
    if free < 1:
        return None
    deviance = 0.0
    for (items, copies), calls in sizes.items():
        total = items * len(calls)
        q = min(max(law.q(items, copies), _EDGE), 1.0 - _EDGE)
        for own, likely in ((sum(calls) / total, q), (1.0 - sum(calls) / total, 1.0 - q)):
            deviance += 2 * total * own * math.log(own / likely) if own > 0 else 0.0
    return float(chi2.sf(max(0.0, deviance) / dispersion, free))


def pooled(samples: Sequence[Sample]) -> dict[tuple[int, int], tuple[int, int, float, float]]:
    """Return what was kept at every size, with no law assumed.

    Returns:
        ``(items, copies)`` to kept, total and the Wilson 95 % interval of their ratio, in ascending order.
    """
    from scipy.stats import binomtest

    found: dict[tuple[int, int], tuple[int, int]] = {}
    for sample in sorted(samples, key=lambda one: (one.copies, one.items)):
        kept, total = found.get((sample.items, sample.copies), (0, 0))
        found[sample.items, sample.copies] = (kept + sample.kept, total + sample.items)
    result = {}
    for size, (kept, total) in found.items():
        interval = binomtest(kept, total).proportion_ci(method="wilson")
        result[size] = (kept, total, float(interval.low), float(interval.high))
    return result


@dataclass(frozen=True, slots=True)
class Plan:
    """A scan by ``parallel-scan``, without a limit on tokens.

    Attributes:
        n: Reflections.
        shards: The reflections that each level-1 call reads.
        merges: Per level above, the positions of the nodes of the level below that each node joins.
    """

    n: int
    shards: tuple[tuple[int, ...], ...]
    merges: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def calls(self) -> tuple[int, ...]:
        """LM calls per level; a node over one node makes none."""
        return (len(self.shards), *(sum(len(node) > 1 for node in level) for level in self.merges))


def plan_scan(n: int, copies: int, fan_in: int, merge_fan_in: int = 32, *, seed: int = 0) -> Plan:
    """Return how ``parallel-scan`` deals and merges n reflections where no call is too long."""
    k = shard_count(n, copies, fan_in, merge_fan_in)
    shards = plan_shards(n, copies, k, derive(seed, "tune-scan", n, copies))
    merges: list[tuple[tuple[int, ...], ...]] = []
    width = len(shards)
    while width > 1:
        runs = even_runs([1] * width, width, merge_fan_in)
        merges.append(tuple(tuple(range(*run)) for run in runs))
        width = len(runs)
    return Plan(n, shards, tuple(merges))


@dataclass(frozen=True, slots=True)
class Survival:
    """The expectation of one plan.

    Attributes:
        survival: Share of the reflections whose lesson the root is expected to hold.
        low: Lower end of the 95 % interval that comes from not knowing the laws exactly.
        high: Upper end.
        level_one: The same share after level 1, in any shard: what a lossless join would keep.
        lines: Expected lessons written at each level, lowest first.
    """

    survival: float
    low: float
    high: float
    level_one: float
    lines: tuple[float, ...]


def predicted_survival(laws: Laws, plan: Plan, *, max_lessons: int = 16) -> Survival:
    """Predict the survival of a lesson through a plan.

    It is the survival of a lesson that one reflection teaches: the worst case,
    since lessons that several reflections teach have several ways through.

    Level 1. A copy survives its shard of m entries with probability q = q_read(m). The p copies stand in
    different calls, which are independent, so one survives with 1 − (1 − q)^p.

    Above. A merge takes in M lines, the sum of what its children are expected
    to write. A lesson stands in x of them, x being the number of children that
    hold it, by the Poisson-binomial law of their probabilities. The merge keeps a lesson that stands in x lines
    with the probability of :class:`Law`, and writes it once. With two copies in
    shards of m, one merge and no limit on writing:

        P = 2q(1 − q) · r(1) + q² · r(2),   q = q_read(m), r(x) = q_merge(M, x).

    Numbers of lines are replaced by their expectation, and a call's failures,
    token limits and lines that teach nothing are left out.

    Args:
        laws: What one call keeps.
        plan: The plan of the scan; its own placement counts.
        max_lessons: The most lessons that a level-1 call may return.
    """
    levels = _levels(laws.reads.law, laws.merges.law, plan, max_lessons)
    drawn = [
        float(_levels(read, merge, plan, max_lessons)[-1].mean())
        for read, merge in zip(laws.reads.replicates, laws.merges.replicates, strict=False)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    first = 1.0 - np.prod(1.0 - levels[0], axis=0)
    lines = tuple(float(level.sum()) for level in levels)
    return Survival(float(levels[-1].mean()), float(low), float(high), float(first.mean()), lines)


def _levels(read: Law, merge: Law, plan: Plan, max_lessons: int) -> list[Floats]:
    """Return, per level, the probability that each node (row) holds each reflection's lesson (column)."""
    capped = replace(read, writes=min(read.writes, float(max_lessons)))
    held = np.zeros((len(plan.shards), plan.n))
    for row, shard in zip(held, plan.shards, strict=True):
        row[list(shard)] = capped.q(len(shard))
    levels = [held]
    for nodes in plan.merges:
        levels.append(np.stack([_merged(merge, levels[-1][list(node)]) for node in nodes]))
    return levels


def _merged(law: Law, children: Floats) -> Floats:
    if len(children) == 1:
        only: Floats = children[0]
        return only
    # Row x: the probability that x children hold each lesson.
    counts = np.zeros((len(children) + 1, children.shape[1]))
    counts[0] = 1.0
    for held in children:
        counts[1:] = counts[1:] * (1.0 - held) + counts[:-1] * held
        counts[0] *= 1.0 - held
    entries = float(children.sum())
    taken = np.zeros(children.shape[1])
    for count in range(1, len(counts)):
        taken += counts[count] * law.read(max(entries, float(count)), count)
    distinct = float(taken.sum())
    result: Floats = law.rate * taken * (min(1.0, law.writes / distinct) if distinct > 0 else 1.0)
    return result
