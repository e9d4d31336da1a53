"""Iterations as sums, and where their seconds went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from combee_dspy import events
from combee_dspy.records import BatchDecision
from combee_dspy.tracking.report._data import PHASES, IterationRow

__all__ = ["PURPOSES", "Iteration", "phase_of"]

PURPOSES: Mapping[str, str] = {
    "parent": "parents",
    "child": "children",
    "screen": "children",
    "validation": "validation",
}
"""Phase by purpose of a rollout."""

_PHASE_OF: Mapping[type[events.Event], str] = {
    events.ReflectionsMade: "scan",
    events.ReflectionTrimmed: "scan",
    events.ScanStarted: "scan",
    events.NodeFinished: "scan",
    events.ScanFinished: "scan",
    events.RetentionMeasured: "scan",
    events.CandidateProposed: "update",
    events.CandidateRefused: "update",
    events.CandidateScreened: "children",
    events.CandidateRejected: "children",
    events.CandidateAccepted: "children",
    events.ValidationFinished: "validation",
}


def phase_of(event: events.Event) -> str:
    """Return the phase of an iteration that ends, or goes on, with an event that is no rollout."""
    return _PHASE_OF.get(type(event), "other")


@dataclass
class Iteration:
    """One iteration while it is being heard. Not thread-safe.

    Attributes:
        number: From 1.
        open: Whether it goes on.
        last: When its last event was heard, seconds; ``None`` without a clock.
    """

    number: int
    open: bool = True
    last: float | None = None
    decisions: list[BatchDecision] = field(default_factory=list)
    seconds: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    scan_seconds: float = 0.0
    sums: dict[str, tuple[int, float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    schedule: dict[str, int] = field(default_factory=dict)
    diversity: events.DiversityMeasured | None = None
    restarted: str = ""

    def pass_time(self, phase: str, at: float | None) -> None:
        """Give the seconds since the last event to the phase that they led to."""
        if self.open and at is not None:
            if self.last is not None:
                self.phases[phase] = self.phases.get(phase, 0.0) + max(0.0, at - self.last)
            self.last = at

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def score(self, purpose: str, score: float) -> None:
        """Add to a mean."""
        count, total = self.sums.get(purpose, (0, 0.0))
        self.sums[purpose] = (count + 1, total + score)

    def freeze(self) -> IterationRow:
        """Return what is known so far."""
        means = {purpose: total / count for purpose, (count, total) in self.sums.items()}
        diversity = self.diversity
        return IterationRow(
            number=self.number,
            decisions=tuple(self.decisions),
            seconds=self.seconds,
            phases=self._phases(),
            parent_mean=means.get("parent"),
            child_mean=means.get("child"),
            rollouts=self.counts.get("rollouts", 0),
            cached=self.counts.get("cached", 0),
            errors=self.counts.get("errors", 0),
            proposed=self.counts.get("proposed", 0),
            accepted=self.counts.get("accepted", 0),
            refused=self.counts.get("refused", 0),
            schedule=dict(self.schedule),
            front_similarity=None if diversity is None else diversity.front_similarity,
            distinct=None if diversity is None else diversity.distinct,
            too_similar=0 if diversity is None else diversity.refused,
            repeated=0 if diversity is None else diversity.repeated,
            temperature=None if diversity is None else diversity.temperature,
            restarted=self.restarted,
        )

    def _phases(self) -> dict[str, float]:
        if self.phases:
            return {phase: self.phases[phase] for phase in PHASES if phase in self.phases}
        if self.seconds is None:
            return {}
        # Heard without a clock: only the scans say how long they took.
        scan = min(self.scan_seconds, self.seconds)
        return {"scan": scan, "other": self.seconds - scan}
