"""What runs come to: intervals over seeds and examples, and whether one method may be called faster than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["MARGIN", "Comparison", "Interval", "compared", "crossed_interval", "mean_of", "pareto_best", "score_table"]

MARGIN = 0.05
"""How much worse, in held-out score, still counts as no worse. Fixed before anything was measured."""

_RESAMPLES = 10_000
_BLOCK = 4_000_000

Table = NDArray[np.float64]


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
        difference: Mean held-out score of the method minus the reference's.
        comparable: Whether the method is shown to be no worse: the interval lies above ``-MARGIN``.
        times_faster: How many times faster; ``None`` where it is not comparable or nothing was timed.
    """

    reference: str
    difference: Interval
    comparable: bool
    times_faster: float | None


def score_table(scores: Sequence[Sequence[float]]) -> Table:
    """Return held-out scores as an array.

    Args:
        scores: One row a seed, one column an example.

    Raises:
        ArgumentValueError: There is no row, or rows differ in length.
    """
    if not scores or not scores[0] or len({len(row) for row in scores}) != 1:
        remedy = "Score the same examples on every seed."
        raise ArgumentValueError("scores", len(scores), "are no table of seeds × examples", remedy)
    return np.array(scores, dtype=float)


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
        # How often each row and column is drawn: the mean of a resample is a bilinear form in these.
        row_weights = generator.multinomial(rows, np.full(rows, 1 / rows), size) / rows
        column_weights = generator.multinomial(columns, np.full(columns, 1 / columns), size) / columns
        means.append(np.einsum("ns,se,ne->n", row_weights, values, column_weights, optimize=True))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def compared(
    reference: str, name: str, reference_scores: Table, scores: Table, times: float | None, *, seed: int = 0
) -> Comparison:
    """Compare a method with a reference: non-inferiority first, speed only after it.

    The interval of the difference, paired by example and seed, must lie above
    ``-MARGIN`` (the usual test of non-inferiority). A method that learned less in less
    time gets no multiple, and neither does one whose sample is too small to tell.

    Args:
        reference: The reference's name.
        name: The method's.
        reference_scores: Held-out scores of the reference, one row a seed.
        scores: Those of the method, for the same seeds and examples.
        times: How many times less the method took; ``None`` where nothing was timed.
        seed: Seed of the resampling.

    Raises:
        ArgumentValueError: The scores do not pair.
    """
    if reference_scores.shape != scores.shape:
        remedy = "Score the same examples on the same seeds."
        raise ArgumentValueError("scores", scores.shape, "do not pair with the reference's", remedy)
    found = crossed_interval(scores - reference_scores, derive_seed(seed, "versus", reference, name))
    comparable = found.low > -MARGIN
    return Comparison(reference, found, comparable, times if comparable else None)


def pareto_best(points: Mapping[str, tuple[float | None, float]]) -> tuple[str, ...]:
    """Return the names that no other dominates, in order.

    Args:
        points: Name to (cost, score): less cost and more score are better. A point without a cost takes no part.
    """
    known = {name: (cost, score) for name, (cost, score) in points.items() if cost is not None}
    return tuple(
        name
        for name, (cost, score) in known.items()
        if not any(
            other_cost <= cost and other_score >= score and (other_cost < cost or other_score > score)
            for other, (other_cost, other_score) in known.items()
            if other != name
        )
    )


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; ``None`` where one of the values is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
