"""Methods side by side: intervals over seeds and examples, and which are faster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = [
    "Comparison",
    "Interval",
    "Side",
    "crossed_interval",
    "fewest_examples",
    "mean_of",
    "not_comparable",
    "paired_interval",
    "pareto_best",
    "side_by_side",
]

_Z = statistics.NormalDist().inv_cdf(0.975)
_HAIR = (
    1e-9  # at the mean itself nothing is beyond, and where no score differs the error is 0 there
)
_RESAMPLES = 10_000
_BLOCK = 4_000_000

Table = NDArray[np.float64]


class Scored(Protocol):
    """One run of one method: held-out scores of student and result, per example."""

    @property
    def method(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def before(self) -> tuple[float, ...]: ...
    @property
    def after(self) -> tuple[float, ...]: ...


R = TypeVar("R", bound=Scored)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def signed(self) -> str:
        """The same with signs, for differences."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method beside a reference, on the same held-out examples and seeds.

    Attributes:
        reference: The reference's name.
        difference: Held-out score of the method minus the reference's.
        comparable: Whether the method is shown to be no worse: the interval lies above ``-margin``
            (the usual test of non-inferiority, at 2.5 %), over at least :func:`fewest_examples`.
        times_faster: How many times faster; ``None`` where it is not comparable, or nothing was
            timed. A method that learned less in less time gets no multiple, and neither does one
            whose sample is too small to tell.
    """

    reference: str
    difference: Interval
    comparable: bool
    times_faster: float | None

    def __str__(self) -> str:
        if not self.comparable:
            return "not comparable"
        return "n/a" if self.times_faster is None else f"{self.times_faster:.1f} ×"


@dataclass(frozen=True, slots=True)
class Side(Generic[R]):
    """One method over the seeds that all methods have finished.

    Attributes:
        method: Its name.
        runs: One run a seed, in the order of the seeds.
        before: Mean held-out score of the student.
        heldout: Held-out score of the result.
        gain: ``heldout`` minus ``before``, paired.
        versus: Beside the first method; ``None`` for the first itself.
    """

    method: str
    runs: tuple[R, ...]
    before: float
    heldout: Interval
    gain: Interval
    versus: Comparison | None

    def figures(self) -> dict[str, Any]:
        """Return what it comes to as plain JSON data, without the runs."""
        versus = None if self.versus is None else asdict(self.versus)
        plain = {
            "method": self.method,
            "seeds": [run.seed for run in self.runs],
            "before": self.before,
        }
        return {
            **plain,
            "heldout": asdict(self.heldout),
            "gain": asdict(self.gain),
            "versus": versus,
        }


def side_by_side(
    runs: Sequence[R],
    times: Callable[[Sequence[R], Sequence[R]], float | None],
    *,
    margin: float,
    seed: int = 0,
) -> list[Side[R]]:
    """Return one side per method, in the order of their first runs; the first is the reference.

    Args:
        runs: All runs so far. Of several runs of one method on one seed the first counts.
        times: How many times faster the second runs are than the first, the reference's.
        margin: How much worse still counts as no worse, in points: hundredths of a held-out score
            of 0 to 1.
        seed: Seed of the resampling.
    """
    by_method: dict[str, dict[int, R]] = {}
    for run in runs:
        by_method.setdefault(run.method, {}).setdefault(run.seed, run)
    seeds = [
        seed
        for seed in dict.fromkeys(run.seed for run in runs)
        if all(seed in own for own in by_method.values())
    ]
    sides: list[Side[R]] = []
    for name, own in by_method.items() if seeds else ():
        chosen = tuple(own[seed] for seed in seeds)
        before, after = (
            _table([run.before for run in chosen]),
            _table([run.after for run in chosen]),
        )
        versus: Comparison | None = None
        if sides:
            first = sides[0]
            difference = after - _table([run.after for run in first.runs])
            interval = paired_interval(difference)
            comparable = interval.low > -margin / 100 and difference.shape[1] >= fewest_examples(
                margin
            )
            versus = Comparison(
                first.method,
                interval,
                comparable,
                times(first.runs, chosen) if comparable else None,
            )
        heldout = crossed_interval(after, derive_seed(seed, "heldout", name))
        sides.append(
            Side(
                name, chosen, float(before.mean()), heldout, paired_interval(after - before), versus
            )
        )
    return sides


def _table(scores: Sequence[Sequence[float]]) -> Table:
    if len({len(row) for row in scores}) != 1:
        raise ArgumentValueError(
            "scores", len(scores), "do not pair", "Score the same examples on every seed."
        )
    return np.array(scores, dtype=float)


def fewest_examples(margin: float) -> int:
    """Return how many examples it takes to show anything within a margin, given in points.

    Fewer show nothing even where not one score differs: Tango's interval then reaches down to z²/(n
    + z²).
    """
    return math.floor(_Z**2 * (100 / margin - 1)) + 1


def not_comparable(margin: float) -> str:
    """Return what stands below a table in which a method has no multiple."""
    return (
        f"not comparable: held-out is not shown to be at most {margin:g} points below the first's;"
        f" at least {fewest_examples(margin):,} held-out examples can show it, and about"
        f" {math.ceil(7849 / margin**2):,} do where 1 in 10 answers differs (80 % power, one seed)"
    )


def paired_interval(changes: Table) -> Interval:
    """Return the mean of paired differences with its 95 % interval, of seeds × examples.

    Over examples it is Tango's score interval ("Equivalence test and confidence interval for the
    difference in proportions for the paired-sample design", Statistics in Medicine 17, 1998): for
    one seed and right-or-wrong scores exactly that. Scores in between, and means over seeds, enter
    by their mean squared change in the place of the share of pairs that differ, raised to the size
    of the mean change where it is below. Scores span at most 1. Over seeds it is Student's interval
    of their means, and the two are joined as independent parts of one error (MOVER: Zou and Donner,
    Statistics in Medicine 27, 2008), which counts noise that belongs to both twice and so errs on
    the wide side. With one seed nothing is said about others. How often it errs stands
    in ``docs/results/statistics.md``.

    Args:
        changes: One row a seed, one column an example; values from -1 to 1.
    """
    from scipy.stats import t

    seeds = changes.shape[0]
    mean, means = float(changes.mean()), changes.mean(axis=0)
    low, high = _tango(mean, float((means**2).mean()), means.size)
    apart = 0.0
    if seeds > 1:
        apart = float(t.ppf(0.975, seeds - 1) * changes.mean(axis=1).std(ddof=1) / math.sqrt(seeds))
    return Interval(
        mean, mean - math.hypot(mean - low, apart), mean + math.hypot(high - mean, apart)
    )


def _tango(mean: float, squared: float, n: int) -> tuple[float, float]:
    """Return the two differences from which a mean change is 1.96 standard errors away."""
    from scipy.optimize import brentq

    differ = min(1.0, max(squared, abs(mean)))  # the share of pairs that differ
    worse = (differ - mean) / 2

    def beyond(truth: float) -> float:
        # The likeliest share of pairs that got worse, were `truth` the difference.
        half = (2 - mean) * truth - differ
        lost = (math.sqrt(max(half * half + 8 * worse * truth * (1 - truth), 0.0)) - half) / 4
        return n * (mean - truth) ** 2 - _Z**2 * (2 * lost + truth * (1 - truth))

    low = brentq(beyond, -1.0, mean - _HAIR) if mean - _HAIR > -1 else -1.0
    high = brentq(beyond, mean + _HAIR, 1.0) if mean + _HAIR < 1 else 1.0
    return float(low), float(high)


def crossed_interval(values: Table, seed: int) -> Interval:
    """Return the mean of a table of seeds × examples with its 95 % bootstrap interval over both.

    Seeds and examples are drawn with replacement independently of each other,
    since every seed is measured on the same examples (the pigeonhole bootstrap:
    Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1, 2007). With
    one seed it is the plain bootstrap over examples and says nothing about other seeds.

    Args:
        values: One row a seed, one column an example.
        seed: Seed of the resampling.
    """
    rows, columns = values.shape
    generator = np.random.default_rng(seed)
    means: list[Table] = []
    block = max(1, _BLOCK // max(values.size, rows + columns))
    for start in range(0, _RESAMPLES, block):
        size = min(block, _RESAMPLES - start)
        # How often each row and column is drawn: the mean of a resample is a bilinear form in
        # these.
        row_weights = generator.multinomial(rows, np.full(rows, 1 / rows), size) / rows
        column_weights = (
            generator.multinomial(columns, np.full(columns, 1 / columns), size) / columns
        )
        means.append(np.einsum("ns,se,ne->n", row_weights, values, column_weights, optimize=True))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def pareto_best(points: Mapping[str, tuple[float | None, float]]) -> tuple[str, ...]:
    """Return the names that no other dominates, in order.

    Args:
        points: Name to (cost, score): less cost and more score are better. A point without a cost
            takes no part.
    """
    measured = {name: (cost, score) for name, (cost, score) in points.items() if cost is not None}
    return tuple(
        name
        for name, (cost, score) in measured.items()
        if not any(
            other != (cost, score) and other[0] <= cost and other[1] >= score
            for other in measured.values()
        )
    )


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; ``None`` where one of the values is not known."""
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured and len(measured) == len(values) else None
