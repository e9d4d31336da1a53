"""What a run remembers between iterations, and across a resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from combee_dspy.costs import Ledger, Totals
from combee_dspy.diversity import DiversityCounter, IterationView
from combee_dspy.engine.lessons import LessonLedger
from combee_dspy.engine.lost import dump_lost, load_lost
from combee_dspy.engine.spending import add_totals, dump_totals, load_totals
from combee_dspy.operators import OperatorOutcome
from combee_dspy.records import BatchDecision, Clamp, Measurement, PowerLawFit, Reflection
from combee_dspy.retention import RetentionBook

__all__ = ["Proposed", "RunState"]

_REJECTED = 32


@dataclass(frozen=True, slots=True)
class Proposed:
    """A child on its way to acceptance.

    Attributes:
        operator: Position of the operator that made it.
        parent: The parent's content hash.
        candidate: Its texts.
    """

    operator: int
    parent: str
    candidate: dict[str, str] = field(default_factory=dict)


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
        spent_in_all: What an earlier part noted as it ended: more than its last checkpoint
            knew, since the final draws and the held-out set come after that.
        clock: Monotonic seconds.
        labels: Label of each operator, by position.
        weights: Probability of each operator by label, for this iteration.
        outcomes: What became of every child, refused ones included.
        proposed: The children of this iteration that have not been validated, by content hash.
        scores: Mean validation score by candidate's content hash.
        front: The best candidates on validation, best first, as of this iteration's start.
        rejected: The children that acceptance turned down last, oldest first: made again, they would
            cost as much and say as little.
        temperature_of: The proposer's temperature in this iteration, by a child's draw from 0;
            ``None`` for the LM's own.
        stale: Iterations without a better validation score, as of this iteration's start.
        drawn: What the similarity guard has seen so far.
        views: What each finished iteration left behind, for restarts and the temperature.
        restarted: Whether this iteration's children are made from the seed's text.
        validated: ``(iteration, score)`` of every validation, in order.
        lessons: Every lesson found.
        lost: Reflections that the last scan lost, by component, to be offered once more. Kept
            across a resume as far as JSON can hold their records.
        retention: What the calls of this process's scans kept.
        unbilled: Rollouts bought outside gepa's view and not counted by it yet.
        bought: Rollouts asked for that were new to the run, those at hand included.
        wasted: Rollouts that were started early and given up, in time or not: on a guess, or for an iteration that
            has been drawn and never came.
        reads: Shards that were read in iterations that have ended.
        wasted_reads: Shards that might have been read on a guess that was given up, read or not.
        begun_early: When the first minibatch was begun, before the seed's validation; ``None`` elsewhere.
        ran_early: When the last of its rollouts had ended that have.
        checked: Whether children of this iteration have run on their minibatch.
        drawn_ahead: What the next iteration that draws was given early: each minibatch's parent (gepa's
            index) and example ids. An iteration that gepa spends on a merge leaves it to the one after.
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
    spent_in_all: Totals = field(default_factory=Totals)
    clock: Callable[[], float] = time.monotonic
    labels: tuple[str, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    outcomes: list[OperatorOutcome] = field(default_factory=list)
    proposed: dict[str, Proposed] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    front: list[dict[str, str]] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)
    temperature_of: Callable[[int], float | None] = lambda draw: None
    stale: int = 0
    drawn: DiversityCounter = field(default_factory=DiversityCounter)
    views: list[IterationView] = field(default_factory=list)
    restarted: bool = False
    validated: list[tuple[int, float]] = field(default_factory=list)
    lessons: LessonLedger = field(default_factory=LessonLedger)
    lost: dict[str, tuple[Reflection, ...]] = field(default_factory=dict)
    retention: RetentionBook = field(default_factory=RetentionBook)
    unbilled: int = 0
    bought: int = 0
    wasted: int = 0
    reads: int = 0
    wasted_reads: int = 0
    begun_early: float | None = None
    ran_early: float | None = None
    checked: bool = False
    drawn_ahead: list[tuple[int, list[Any]]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _sizes_ahead: list[int] = field(default_factory=list)

    def add_score(self, score: float) -> None:
        """Count one parent score."""
        self.score_count += 1
        delta = score - self.score_mean
        self.score_mean += delta / self.score_count
        self.score_m2 += delta * (score - self.score_mean)

    @property
    def ahead(self) -> int:
        """How many of the training examples drawn are for an iteration that has not begun."""
        return sum(self._sizes_ahead)

    @property
    def score_variance(self) -> float | None:
        """Sample variance of the parent scores, ``None`` below two of them."""
        return self.score_m2 / (self.score_count - 1) if self.score_count > 1 else None

    @property
    def mean_record_tokens(self) -> float | None:
        """Mean estimated tokens of a reflection, ``None`` before the first."""
        return self.record_tokens / self.records if self.records else None

    def refused(self, operators: Iterable[int]) -> None:
        """Note operators whose edit was refused before anything was bought."""
        self.outcomes.extend(
            OperatorOutcome(self.labels[position], self.iteration, None, accepted=False) for position in operators
        )

    def validate_child(self, identity: str, score: float) -> None:
        """Note a candidate's validation score, and what it says about the operator that made it."""
        if self.iteration or not self.validated:
            # A resumed run hears of its seed again.
            self.validated.append((self.iteration, score))
        child = self.proposed.pop(identity, None)
        if child is not None:
            before = self.scores.get(child.parent)
            lift = None if before is None else score - before
            self.outcomes.append(OperatorOutcome(self.labels[child.operator], self.iteration, lift, accepted=True))
        self.scores[identity] = score

    def end_iteration(self) -> list[str]:
        """Note the children that were not kept, and return their content hashes."""
        gone = list(self.proposed)
        for child in self.proposed.values():
            self.outcomes.append(OperatorOutcome(self.labels[child.operator], self.iteration, None, accepted=False))
            self.rejected.append(child.candidate)
        del self.rejected[:-_REJECTED]
        self.proposed.clear()
        return gone

    def totals(self) -> Totals:
        """Return what the whole run has spent so far."""
        return add_totals(self.spent, self.ledger.snapshot())

    def draw_minibatch(self, size: int, *, ahead: bool = False) -> None:
        """Note that a minibatch was drawn, for this iteration or ``ahead`` for the next."""
        (self._sizes_ahead if ahead else self._sizes).append(size)

    def take_drawn(self) -> list[tuple[int, list[Any]]]:
        """Return what was drawn ahead, empty for nothing; its sizes count for the iteration at hand from now on."""
        drawn, self.drawn_ahead = self.drawn_ahead, []
        self._sizes += self._sizes_ahead
        self._sizes_ahead = []
        return drawn

    def finish_measurement(self, started: float) -> None:
        """Note the iteration's delay, where its children were checked.

        The delay runs from the iteration's start to its end, validation included: that is what an
        epoch is made of. What the first minibatch took before that is added: without, small batches
        would seem to take next to no time. With several minibatches in one iteration, each has its
        share of the delay, since an epoch then takes that many iterations fewer.

        Args:
            started: When gepa began the iteration, by this object's clock.
        """
        begun, self.begun_early = self.begun_early, None
        early = 0.0 if begun is None else min(self.ran_early or started, started) - begun
        seconds = self.clock() - started + early
        sizes, self._sizes = self._sizes, []
        if self.checked and sizes:
            self.measurements.append(Measurement(sizes[0], seconds / len(sizes)))
        self.checked = False

    def dump(self) -> dict[str, Any]:
        """Return plain data for gepa's checkpoint."""
        return {
            "cursor": self.cursor,
            "measurements": [[m.batch_size, m.seconds] for m in self.measurements],
            "scores": [self.score_count, self.score_mean, self.score_m2],
            "records": [self.records, self.record_tokens],
            "decisions": [asdict(decision) for decision in self.decisions],
            "spent": dump_totals(self.totals()),
            "search": {
                "outcomes": [asdict(outcome) for outcome in self.outcomes],
                "scores": self.scores,
                "drawn": self.drawn.to_dict(),
                "views": [asdict(view) for view in self.views],
                "restarted": self.restarted,
                "rejected": self.rejected,
                "validated": [list(one) for one in self.validated],
                "lessons": self.lessons.dump(),
                "lost": dump_lost(self.lost),
                "unbilled": self.unbilled,
                "counted": [self.bought, self.wasted, self.wasted_reads, self.reads],
                "drawn_next": [list(one) for one in self.drawn_ahead],
                "sizes_next": self._sizes_ahead,
            },
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what :meth:`dump` returned. Older checkpoints hold neither decisions nor spending nor counts."""
        self.cursor = int(data["cursor"])
        self.measurements = [Measurement(int(size), float(seconds)) for size, seconds in data["measurements"]]
        count, mean, m2 = data["scores"]
        self.score_count, self.score_mean, self.score_m2 = int(count), float(mean), float(m2)
        self.records, self.record_tokens = (int(value) for value in data["records"])
        self.decisions = [_decision(found) for found in data.get("decisions", ())]
        known = load_totals(data.get("spent", {}))
        self.spent = max(known, self.spent_in_all, key=lambda totals: totals.total.calls)
        if "search" in data:
            self._load_search(data["search"])

    def _load_search(self, data: Mapping[str, Any]) -> None:
        self.outcomes = [OperatorOutcome(**outcome) for outcome in data["outcomes"]]
        self.scores = {str(key): float(value) for key, value in data["scores"].items()}
        self.drawn = DiversityCounter.from_dict(data["drawn"])
        self.views = [IterationView(**view) for view in data["views"]]
        self.rejected = [dict(candidate) for candidate in data.get("rejected", ())]
        self.restarted = bool(data.get("restarted", False))
        self.validated = [(int(iteration), float(score)) for iteration, score in data["validated"]]
        self.lessons.load(data["lessons"])
        self.lost = load_lost(data.get("lost", {}))
        self.unbilled = int(data["unbilled"])
        counts = [*map(int, data.get("counted", ())), 0, 0, 0, 0]
        self.bought, self.wasted, self.wasted_reads, self.reads = counts[:4]
        self.drawn_ahead = [(int(parent), list(ids)) for parent, ids in data.get("drawn_next", ())]
        self._sizes_ahead = [int(size) for size in data.get("sizes_next", ())]


def _decision(data: Mapping[str, Any]) -> BatchDecision:
    fit = PowerLawFit(**data["fit"]) if data["fit"] else None
    return BatchDecision(data["size"], data["reason"], fit, tuple(Clamp(**clamp) for clamp in data["clamps"]))
