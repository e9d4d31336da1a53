"""Methods side by side: intervals over examples and seeds, and which are Pareto-best. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from combee_dspy.bench.compare import MARGIN, Comparison
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["AXES", "Interval", "MethodSummary", "RunFigures", "crossed_interval", "pareto_best", "summarize"]

AXES = ("seconds", "tokens", "dollars")
"""What a held-out score is set against."""

_RESAMPLES = 10_000
_BLOCK = 4_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run of one method.

    Attributes:
        method: Its name.
        seed: Its seed.
        before: Held-out score of the student per example.
        after: Held-out score of what the method chose, in the same order.
        seconds: Seconds of the search.
        tokens: Tokens of the search.
        dollars: Dollars of the search; ``None`` where not known.
        rollouts: Rollouts bought.
        validation: Mean validation score of what it chose; ``None`` where nothing was validated.
    """

    method: str
    seed: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    seconds: float
    tokens: int
    dollars: float | None
    rollouts: int
    validation: float | None


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method over all seeds.

    Attributes:
        method: Its name.
        seeds: Its seeds.
        before: Mean held-out score of the student.
        heldout: Mean held-out score of what it chose.
        gain: ``heldout`` minus ``before``, paired.
        seconds: Mean seconds a run.
        tokens: Mean tokens a run.
        dollars: Mean dollars a run; ``None`` where one is not known.
        rollouts: Mean rollouts a run.
        validation: Mean validation score; ``None`` where one is not known.
        versus: Beside the reference; ``None`` for the reference itself. ``times_faster`` is a
            ratio of mean seconds, and ``None`` where held-out is not shown to be no worse.
        best_on: The axes on which no other method has at least its held-out score for at most its cost;
            empty for a method that stands alone.
    """

    method: str
    seeds: tuple[int, ...]
    before: float
    heldout: Interval
    gain: Interval
    seconds: float
    tokens: float
    dollars: float | None
    rollouts: float
    validation: float | None
    versus: Comparison | None = None
    best_on: tuple[str, ...] = field(default=())


def crossed_interval(values: NDArray[np.float64], seed: int, confidence: float = 0.95) -> Interval:
    """Return the mean of a table of seeds × examples with its bootstrap interval over both.

    Seeds and examples are drawn with replacement independently of each other,
    since every seed is measured on the same examples (the pigeonhole bootstrap:
    Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1, 2007). With
    one seed it is the plain bootstrap over examples and says nothing about other seeds.

    Args:
        values: One row a seed, one column an example.
        seed: Seed of the resampling.
        confidence: Level, between 0 and 1.

    Raises:
        ArgumentValueError: The table is empty.
    """
    if values.ndim != 2 or values.size == 0:
        remedy = "Give at least one of both."
        raise ArgumentValueError("values", values.shape, "is no table of seeds × examples", remedy)
    rows, columns = values.shape
    generator = np.random.default_rng(seed)
    means: list[NDArray[np.float64]] = []
    block = max(1, _BLOCK // max(values.size, rows + columns))
    for start in range(0, _RESAMPLES, block):
        size = min(block, _RESAMPLES - start)
        # How often each row and column is drawn: the mean of a resample is a bilinear form in these.
        row_weights = generator.multinomial(rows, np.full(rows, 1 / rows), size) / rows
        column_weights = generator.multinomial(columns, np.full(columns, 1 / columns), size) / columns
        means.append(np.einsum("ns,se,ne->n", row_weights, values, column_weights, optimize=True))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return Interval(float(values.mean()), float(low), float(high))


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


def summarize(runs: Sequence[RunFigures], *, seed: int = 0) -> list[MethodSummary]:
    """Return one summary per method, in the order of their first runs; the first is the reference.

    Methods are compared on the seeds that all of them have finished, so that a
    comparison which was broken off still pairs.

    Args:
        runs: All runs.
        seed: Seed of the resampling.

    Raises:
        ArgumentValueError: Runs were not scored on the same number of examples, or no seed is common to all methods.
    """
    methods = list(dict.fromkeys(run.method for run in runs))
    by_place = {(run.method, run.seed): run for run in runs}
    seeds = [
        one for one in dict.fromkeys(run.seed for run in runs) if all((method, one) in by_place for method in methods)
    ]
    if not seeds or len({len(run.after) for run in runs} | {len(run.before) for run in runs}) != 1:
        remedy = "Run every method on the same seeds and held-out examples."
        raise ArgumentValueError("runs", len(runs), "do not pair", remedy)
    tables = {method: np.array([by_place[method, one].after for one in seeds]) for method in methods}
    befores = {method: np.array([by_place[method, one].before for one in seeds]) for method in methods}
    costs = {method: [by_place[method, one] for one in seeds] for method in methods}
    summaries = []
    for method in methods:
        versus: Comparison | None = None
        if method != methods[0]:
            versus = _versus(methods[0], method, tables, costs, seed)
        summaries.append(
            MethodSummary(
                method=method,
                seeds=tuple(seeds),
                before=float(befores[method].mean()),
                heldout=crossed_interval(tables[method], derive_seed(seed, "heldout", method)),
                gain=crossed_interval(tables[method] - befores[method], derive_seed(seed, "gain", method)),
                seconds=_mean([run.seconds for run in costs[method]]) or 0.0,
                tokens=_mean([float(run.tokens) for run in costs[method]]) or 0.0,
                dollars=_mean([run.dollars for run in costs[method]]),
                rollouts=_mean([float(run.rollouts) for run in costs[method]]) or 0.0,
                validation=_mean([run.validation for run in costs[method]]),
                versus=versus,
                best_on=tuple(axis for axis in AXES if method in _best_on(axis, tables, costs)),
            )
        )
    return summaries


def _versus(
    reference: str,
    method: str,
    tables: Mapping[str, NDArray[np.float64]],
    costs: Mapping[str, Sequence[RunFigures]],
    seed: int,
) -> Comparison:
    found = crossed_interval(tables[method] - tables[reference], derive_seed(seed, "versus", reference, method))
    comparable = found.low > -MARGIN
    base, own = (sum(run.seconds for run in costs[name]) for name in (reference, method))
    times = base / own if comparable and own > 0 else None
    return Comparison(reference, found.mean, found.low, found.high, MARGIN, comparable, times)


def _best_on(
    axis: str, tables: Mapping[str, NDArray[np.float64]], costs: Mapping[str, Sequence[RunFigures]]
) -> tuple[str, ...]:
    points = {
        method: (_mean([getattr(run, axis) for run in runs]), float(tables[method].mean()))
        for method, runs in costs.items()
    }
    if len(points) < 2 or all(cost == 0 for cost, _ in points.values()):
        # One method alone is best at nothing, and what costs nothing tells no method from another.
        return ()
    return pareto_best(points)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
