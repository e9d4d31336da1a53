"""What runs of an epoch come to: the median of seconds, held-out over seeds, and who may be called faster. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from combee_dspy.bench.compare import MARGIN, Comparison
from combee_dspy.bench.side_statistics import Interval, crossed_interval
from combee_dspy.bench.speed import SpeedRun
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["MethodResult", "compare_over_seeds", "summarize_speed"]


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One method over all its runs.

    Attributes:
        method: Its name.
        seconds: Median seconds of the timed runs, at full scale.
        seconds_of: Seconds of each of them, in the order in which they ran.
        median: The timed run whose seconds are the median (of an even number, the lower one): calls,
            tokens, updates, slot use and bounds are shown of this one.
        seeds: Seeds of the held-out figures.
        before: Mean held-out score of the student.
        heldout: Mean held-out score of the result, with its 95 % interval over examples and seeds.
        gain: ``heldout`` minus ``before``, paired.
        versus: Beside the first method; ``None`` for the first itself.
        repeated: Whether the timed run scored on held-out what the run without latencies did with the
            same seed; ``None`` where the seed was not run again.
    """

    method: str
    seconds: float
    seconds_of: tuple[float, ...]
    median: SpeedRun
    seeds: tuple[int, ...]
    before: float
    heldout: Interval
    gain: Interval
    versus: Comparison | None = None
    repeated: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, without the scores of single examples."""
        plain = asdict(self)
        plain["median"] = {name: value for name, value in self.median.to_dict().items() if name not in _SCORES}
        return plain


_SCORES = ("before", "after")


def compare_over_seeds(
    reference: str,
    reference_scores: Sequence[Sequence[float]],
    scores: Sequence[Sequence[float]],
    *,
    seconds: tuple[float, float],
    seed: int,
) -> Comparison:
    """Compare a method with a reference on several seeds: non-inferiority first, speed only after it.

    The rule of :func:`combee_dspy.bench.compare`, on the interval over examples
    and seeds of :func:`combee_dspy.bench.side_statistics.crossed_interval`: its
    lower end must lie above ``-MARGIN``, or there is no multiple.

    Args:
        reference: The reference's name.
        reference_scores: Its held-out scores, one row a seed, one column an example.
        scores: The method's, for the same seeds and examples.
        seconds: Seconds of the reference and of the method.
        seed: Seed of the resampling.

    Raises:
        ArgumentValueError: The scores do not pair, or there are none.
    """
    found = crossed_interval(_table(scores) - _paired(reference_scores, scores), seed)
    comparable = found.low > -MARGIN
    times = seconds[0] / seconds[1] if comparable else None
    return Comparison(reference, found.mean, found.low, found.high, MARGIN, comparable, times)


def summarize_speed(methods: Sequence[str], runs: Iterable[SpeedRun], *, seed: int = 0) -> list[MethodResult]:
    """Return one result per method that has been timed, in the order given.

    Held-out is compared on the seeds that all of these methods have finished
    without latencies; before there is one, on the first timed run.

    Args:
        methods: Names; the first is the reference.
        runs: The runs so far.
        seed: Seed of the resampling.
    """
    known = list(runs)
    timed = {name: [run for run in known if run.method == name and run.seconds is not None] for name in methods}
    done = [name for name in methods if any(run.repeat is not None for run in timed[name])]
    graded = {(run.method, run.seed): run for run in known if run.repeat is None}
    seeds = [one for one in dict.fromkeys(run.seed for run in known) if all((name, one) in graded for name in done)]
    first: tuple[float, list[SpeedRun]] | None = None
    results = []
    for name in done:
        repeats = [run for run in timed[name] if run.repeat is not None]
        # A run on a user's own endpoint is timed whatever it was made for; its seconds count as such only here.
        ordered = sorted(repeats, key=lambda run: run.seconds or 0.0)
        seconds = statistics.median(run.seconds or 0.0 for run in repeats)
        scored = [graded[name, one] for one in seeds] or repeats[:1]
        versus = None if first is None else _versus(done[0], first, name, (seconds, scored), seed)
        first = first or (seconds, scored)
        results.append(_result(name, seconds, repeats, ordered[(len(ordered) - 1) // 2], scored, versus, seed))
    return results


def _versus(
    reference: str, first: tuple[float, list[SpeedRun]], name: str, own: tuple[float, list[SpeedRun]], seed: int
) -> Comparison:
    return compare_over_seeds(
        reference,
        [run.after for run in first[1]],
        [run.after for run in own[1]],
        seconds=(first[0], own[0]),
        seed=derive_seed(seed, "bench", reference, name),
    )


def _result(
    name: str,
    seconds: float,
    repeats: list[SpeedRun],
    median: SpeedRun,
    scored: list[SpeedRun],
    versus: Comparison | None,
    seed: int,
) -> MethodResult:
    before, after = (_table([getattr(run, which) for run in scored]) for which in _SCORES)
    again = [run for run in scored if run.repeat is None and run.seed == repeats[0].seed]
    return MethodResult(
        method=name,
        seconds=seconds,
        seconds_of=tuple(run.seconds or 0.0 for run in repeats),
        median=median,
        seeds=tuple(run.seed for run in scored),
        before=float(before.mean()),
        heldout=crossed_interval(after, derive_seed(seed, "heldout", name)),
        gain=crossed_interval(after - before, derive_seed(seed, "gain", name)),
        versus=versus,
        repeated=all(run.after == repeats[0].after for run in again) if again else None,
    )


def _table(scores: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    if not scores or len({len(row) for row in scores}) != 1:
        remedy = "Give one row a seed, each with a score for every example."
        raise ArgumentValueError("scores", len(scores), "are no table of seeds × examples", remedy)
    return np.array(scores, dtype=float)


def _paired(reference: Sequence[Sequence[float]], scores: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    table = _table(reference)
    if table.shape != _table(scores).shape:
        remedy = "Score the same examples on the same seeds."
        raise ArgumentValueError("scores", len(scores), "do not pair with the reference's", remedy)
    return table
