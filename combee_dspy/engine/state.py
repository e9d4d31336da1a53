"""What a run remembers between iterations, and across a resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from combee_dspy.costs import Ledger, Totals
from combee_dspy.engine.spending import add_totals, dump_totals, load_totals
from combee_dspy.records import BatchDecision, Clamp, Measurement, PowerLawFit

__all__ = ["RunState"]


@dataclass(slots=True)
class RunState:
    """The mutable state of one run. Owned by the thread that runs gepa's loop.

    Attributes:
        cursor: Training examples drawn so far.
        iteration: The iteration at hand, from 1; 0 before the first.
        measurements: Delay of every finished iteration.
        decisions: Every batch decision of the run, in order, those before a resume included.
        score_count: Parent scores seen.
        score_mean: Their mean.
        score_m2: Their sum of squared differences from the mean (Welford 1962).
        record_tokens: Estimated tokens of all reflections seen.
        records: How many reflections that were.
        ledger: Counts what this process spends.
        spent: What the run had spent before it was resumed.
        clock: Monotonic seconds.
    """

    cursor: int = 0
    iteration: int = 0
    measurements: list[Measurement] = field(default_factory=list)
    decisions: list[BatchDecision] = field(default_factory=list)
    score_count: int = 0
    score_mean: float = 0.0
    score_m2: float = 0.0
    record_tokens: int = 0
    records: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    spent: Totals = field(default_factory=Totals)
    clock: Callable[[], float] = time.monotonic
    _started: float | None = None
    _minibatches: tuple[int, ...] = ()

    def add_score(self, score: float) -> None:
        """Count one parent score."""
        self.score_count += 1
        delta = score - self.score_mean
        self.score_mean += delta / self.score_count
        self.score_m2 += delta * (score - self.score_mean)

    @property
    def score_variance(self) -> float | None:
        """Sample variance of the parent scores, ``None`` below two of them."""
        return self.score_m2 / (self.score_count - 1) if self.score_count > 1 else None

    @property
    def mean_record_tokens(self) -> float | None:
        """Mean estimated tokens of a reflection, ``None`` before the first."""
        return self.record_tokens / self.records if self.records else None

    def totals(self) -> Totals:
        """Return what the whole run has spent so far."""
        return add_totals(self.spent, self.ledger.snapshot())

    def start_minibatch(self, size: int, *, first: bool) -> None:
        """Note that a minibatch was drawn; the first of an iteration starts its clock."""
        if first:
            self._started, self._minibatches = self.clock(), ()
        self._minibatches += (size,)

    def finish_measurement(self) -> None:
        """Note that the children have been checked: the iteration's delay is known.

        With several minibatches in one iteration, each has its share of the delay,
        since an epoch then takes that many iterations fewer.
        """
        if self._started is not None and self._minibatches:
            seconds = (self.clock() - self._started) / len(self._minibatches)
            self.measurements.append(Measurement(self._minibatches[0], seconds))
        self._started = None

    def dump(self) -> dict[str, Any]:
        """Return plain data for gepa's checkpoint."""
        return {
            "cursor": self.cursor,
            "measurements": [[m.batch_size, m.seconds] for m in self.measurements],
            "scores": [self.score_count, self.score_mean, self.score_m2],
            "records": [self.records, self.record_tokens],
            "decisions": [asdict(decision) for decision in self.decisions],
            "spent": dump_totals(self.totals()),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what :meth:`dump` returned. Older checkpoints hold neither decisions nor spending."""
        self.cursor = int(data["cursor"])
        self.measurements = [Measurement(int(size), float(seconds)) for size, seconds in data["measurements"]]
        count, mean, m2 = data["scores"]
        self.score_count, self.score_mean, self.score_m2 = int(count), float(mean), float(m2)
        self.records, self.record_tokens = (int(value) for value in data["records"])
        self.decisions = [_decision(found) for found in data.get("decisions", ())]
        self.spent = load_totals(data.get("spent", {}))


def _decision(data: Mapping[str, Any]) -> BatchDecision:
    fit = PowerLawFit(**data["fit"]) if data["fit"] else None
    return BatchDecision(data["size"], data["reason"], fit, tuple(Clamp(**clamp) for clamp in data["clamps"]))
