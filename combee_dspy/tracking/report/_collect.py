"""From events to what a report shows: a fold that keeps bounded data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

from combee_dspy import events
from combee_dspy.records import Measurement
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._text import cut
from combee_dspy.tracking.report._costs import cost_rows, spending_of
from combee_dspy.tracking.report._data import Heldout, IterationRow, Note, Point, ReportData, Weights
from combee_dspy.tracking.report._iterations import PURPOSES, Iteration, phase_of
from combee_dspy.tracking.report._pool import Pool
from combee_dspy.tracking.report._redacted import redacted
from combee_dspy.tracking.report._scans import Scans
from combee_dspy.tracking.report._schedule import Schedule
from combee_dspy.tracking.report._telling import Seen, Telling, seen_of

__all__ = ["Collector", "collect"]

MAX_COMPONENT = 250_000
"""Characters of a component of the seed and of the result that are kept."""

MAX_NOTES = 200
"""Notes that are kept: the first ones, since later ones mostly repeat them."""


def collect(heard: Iterable[events.Event], redactor: Redactor | None = None) -> ReportData:
    """Return what a report shows about a run.

    Args:
        heard: The run's events, in the order of their emission. They may stop anywhere.
        redactor: Takes keys out of texts; by default one that knows this process's.
    """
    collector = Collector(redactor)
    for event in heard:
        collector.hear(event)
    return collector.data()


class Collector:
    """Hears a run's events and says at any time what a report shows.

    Memory grows with iterations and candidates by a few hundred bytes each;
    texts are bounded (see the modules of this package). Not thread-safe.

    Args:
        redactor: Takes keys out of texts; by default one that knows this process's.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor if redactor is not None else Redactor()
        self._base = ReportData()
        self._iterations: dict[int, Iteration] = {}
        self._points: list[Point] = []
        self._measurements: tuple[Measurement, ...] = ()
        self._weights: list[Weights] = []
        self._notes: list[Note] = []
        self._notes_dropped = 0
        self._costs: Mapping[str, Any] = {}
        self._scans = Scans()
        self._pool = Pool()
        self._telling = Telling()
        self._schedule = Schedule()

    def hear(self, event: events.Event, at: float | None = None) -> None:
        """Take one event into account.

        Args:
            event: What happened.
            at: When, in seconds from any fixed moment; ``None`` where that is not known.
        """
        if isinstance(event, events.RolloutFinished):
            self.rollout(seen_of(event, self._redactor), at)
            return
        # First of all: of a key that is cut, the rest would not be found.
        event = redacted(event, self._redactor)
        if isinstance(event, events.IterationStarted):
            self._begin(event.iteration, at)
            return
        if isinstance(event, events.ScheduleDecided):
            self._schedule.decided(event, at)
        elif isinstance(event, events.RunStarted):
            self._schedule.begin(at)
        if event.iteration in self._iterations:
            self._iterations[event.iteration].pass_time(phase_of(event), at)
        self._hear(event)

    def rollout(self, seen: Seen, at: float | None = None) -> None:
        """Take one rollout into account.

        Args:
            seen: The rollout.
            at: See :meth:`hear`.
        """
        iteration = self._iteration(seen.iteration)
        iteration.pass_time(PURPOSES.get(seen.purpose, "other"), at)
        iteration.count("cached" if seen.cached else "rollouts")
        if seen.error:
            iteration.count("errors")
        iteration.score(seen.purpose, seen.score)
        self._pool.rollout(seen.iteration, seen.candidate_id, seen.purpose, seen.score)
        self._telling.add(seen)

    def data(self) -> ReportData:
        """Return what is known so far, without keys."""
        rows = tuple(self._iterations[number].freeze() for number in sorted(self._iterations) if number > 0)
        collected = replace(
            self._base,
            costs=cost_rows(self._costs),
            spending=spending_of(self._costs),
            points=tuple(self._points),
            iterations=rows,
            scans=tuple(self._scans.views),
            measurements=self._measurements or _measured(rows),
            weights=tuple(self._weights),
            candidates=self._pool.rows(),
            refusals=tuple((operator, reason, count) for (operator, reason), count in self._pool.refusals.items()),
            telling=self._telling.rows(),
            notes=tuple(self._notes),
            dropped=self._dropped(),
            schedule=self._schedule.view(),
        )
        return redacted(collected, self._redactor)

    def _begin(self, number: int, at: float | None) -> None:
        # A run that was killed and resumed does its last iteration again.
        self._iterations[number] = Iteration(number, last=at)
        self._points = [point for point in self._points if point.iteration != number]
        self._scans.forget(number)

    def _iteration(self, number: int) -> Iteration:
        found = self._iterations.get(number)
        if found is None:
            found = self._iterations[number] = Iteration(number)
        return found

    def _note(self, event: events.Event, title: str, text: str, severity: Any = "info") -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(Note(event.iteration, title, cut(text, 2_000), severity))
        else:
            self._notes_dropped += 1

    def _dropped(self) -> tuple[str, ...]:
        counts = {
            "the oldest scans are shown with counts only: {}": self._scans.stripped,
            "candidates that were not kept and are left out: {}": self._pool.dropped,
            "candidates whose text is left out: {}": self._pool.dropped_texts,
            "further notes: {}": self._notes_dropped,
        }
        return tuple(sentence.format(count) for sentence, count in counts.items() if count)

    @singledispatchmethod
    def _hear(self, event: events.Event) -> None:
        pass

    @_hear.register
    def _(self, event: events.RunStarted) -> None:
        texts = {name: cut(text, MAX_COMPONENT) for name, text in event.components.items()}
        self._base = replace(
            self._base,
            name=event.name,
            seed=event.seed,
            sizes=dict(event.sizes),
            digests=dict(event.digests),
            models=dict(event.models),
            # By the name of a key too: a strategy's parameter may be called ``api_key``.
            specs=self._redactor.data(event.specs),
            warnings=tuple(event.warnings),
            simulated=_simulated(event),
            seed_texts=texts,
            best_texts=self._base.best_texts or texts,
        )

    @_hear.register
    def _(self, event: events.BatchPlanned) -> None:
        self._iteration(event.iteration).decisions.append(event.decision)
        self._measurements = tuple(event.measurements) or self._measurements

    @_hear.register
    def _(self, event: events.ScanStarted) -> None:
        self._scans.started(event)

    @_hear.register
    def _(self, event: events.NodeFinished) -> None:
        self._scans.node(event)

    @_hear.register
    def _(self, event: events.ScanFinished) -> None:
        self._iteration(event.iteration).scan_seconds += event.seconds
        self._scans.finished(event)

    @_hear.register
    def _(self, event: events.RetentionMeasured) -> None:
        self._scans.retained(event)

    @_hear.register
    def _(self, event: events.CandidateProposed) -> None:
        self._iteration(event.iteration).count("proposed")
        self._telling.child(event.iteration, event.candidate_id, event.parent_id)
        self._pool.proposed(event)

    @_hear.register
    def _(self, event: events.CandidateRefused) -> None:
        self._iteration(event.iteration).count("refused")
        self._pool.refused(event)

    @_hear.register
    def _(self, event: events.CandidateScreened) -> None:
        self._pool.screened(event)

    @_hear.register
    def _(self, event: events.CandidateAccepted) -> None:
        self._iteration(event.iteration).count("accepted")
        self._pool.accepted(event)

    @_hear.register
    def _(self, event: events.ValidationFinished) -> None:
        self._pool.validated(event)
        self._points.append(Point(event.iteration, event.index, event.score, event.best, event.rollouts))
        if event.index == 0:
            self._base = replace(self._base, seed_score=event.score)
        if event.best:
            texts = {name: cut(text, MAX_COMPONENT) for name, text in event.texts.items()}
            self._base = replace(self._base, best_texts=texts, best_score=event.score)
            self._pool.chosen = event.index
        self._base = replace(self._base, rollouts=max(self._base.rollouts, event.rollouts))

    @_hear.register
    def _(self, event: events.IterationFinished) -> None:
        iteration = self._iteration(event.iteration)
        iteration.seconds, iteration.open = event.seconds, False
        self._costs = event.costs or self._costs
        spending = spending_of(event.costs) if event.costs else None
        self._points = [
            replace(point, spending=spending) if 0 < point.iteration == event.iteration else point
            for point in self._points
        ]
        self._base = replace(self._base, rollouts=max(self._base.rollouts, event.rollouts))

    @_hear.register
    def _(self, event: events.OperatorsWeighted) -> None:
        self._weights.append(Weights(event.iteration, dict(event.weights), cut(event.reason, 500)))

    @_hear.register
    def _(self, event: events.DiversityMeasured) -> None:
        self._iteration(event.iteration).diversity = event

    @_hear.register
    def _(self, event: events.ScheduleDecided) -> None:
        schedule = self._iteration(event.iteration).schedule
        schedule[event.decision] = schedule.get(event.decision, 0) + 1

    @_hear.register
    def _(self, event: events.Restarted) -> None:
        self._iteration(event.iteration).restarted = cut(event.reason, 500)
        self._note(event, "started again from the seed", event.reason, "warning")

    @_hear.register
    def _(self, event: events.HeldoutPinned) -> None:
        text = (
            f"{event.size} rows, SHA-256 {event.digest[:16]}…: a difference of {event.margin:.3g} is told from none "
            f"with power {event.power:.0%} ({event.basis})."
        )
        self._note(event, "held-out pinned", text)

    @_hear.register
    def _(self, event: events.CalibrationFinished) -> None:
        text = (
            f"Spearman {event.correlation:.2f}, interval {event.low:.2f} to {event.high:.2f}, on {event.size} "
            f"rollouts; {event.threshold:.2f} is asked for: {'passed' if event.passed else 'not passed'}."
        )
        self._note(event, f"{event.subject} calibrated", text, "info" if event.passed else "error")

    @_hear.register
    def _(self, event: events.CacheInvalidated) -> None:
        self._note(event, "cache invalidated", f"{event.entries} entries: {event.reason}", "warning")

    @_hear.register
    def _(self, event: events.CandidateSelected) -> None:
        self._pool.chosen = event.index
        looks = f"{event.looks} candidates were compared on validation, {len(event.finalists)} of them as finalists."
        self._note(event, f"candidate {event.index} selected", f"{event.reason} {looks}")

    @_hear.register
    def _(self, event: events.HeldoutEvaluated) -> None:
        low, high = event.interval
        heldout = Heldout(event.before, event.after, low, high, event.confidence, event.size, event.digest)
        self._base = replace(self._base, heldout=heldout)

    @_hear.register
    def _(self, event: events.ErrorRaised) -> None:
        self._note(event, event.where, event.error, "error" if event.fatal else "warning")

    @_hear.register
    def _(self, event: events.RunStopping) -> None:
        self._base = replace(self._base, reason=event.reason)

    @_hear.register
    def _(self, event: events.RunFinished) -> None:
        self._costs = event.costs or self._costs
        self._pool.chosen = event.best_index
        self._base = replace(
            self._base,
            reason=event.reason,
            finished=True,
            seconds=event.seconds,
            rollouts=event.rollouts,
            best_score=event.best_score if math.isfinite(event.best_score) else None,
            best_texts={name: cut(text, MAX_COMPONENT) for name, text in event.texts.items()},
        )


def _simulated(event: events.RunStarted) -> bool:
    parts = [part for model in event.models.values() for part in str(model).split("/")]
    return any(part.startswith("simulated") for part in parts)


def _measured(rows: Iterable[IterationRow]) -> tuple[Measurement, ...]:
    """Return delays from the phases that the controller's own measurements cover, where those were not heard."""
    found = []
    for row in rows:
        parts = [row.phases.get(phase, 0.0) for phase in ("parents", "scan", "update", "children")]
        if row.decisions and row.seconds is not None and {"parents", "children"} <= set(row.phases) and sum(parts) > 0:
            found.append(Measurement(row.decisions[-1].size, sum(parts)))
    return tuple(found)
