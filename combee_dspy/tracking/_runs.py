"""The figures of runs: scores, held-out figures, costs, and why they ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from combee_dspy.events import (
    CandidateValidated,
    HeldoutRead,
    PointPriced,
    RunStopped,
    UpdateEnded,
)
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.records import NO_BASELINE
from combee_dspy.tracking._sql import COSTS, RUN_ROLLOUTS
from combee_dspy.verdicts import Verdict, judge_difference

__all__ = ["RunFigures", "figures_of", "summarize_runs"]

_HELDOUT = ("before", "after", "difference", "low", "high", "n", "look")


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a run amounts to so far; the columns of ``combee runs --json``.

    Attributes:
        program: Class of the student.
        models: Name of the model by role.
        limits: What the budget allows, by name; ``None`` for any number.
        simulated: Whether a model is simulated: 1 or 0.
        updates: Updates that have ended.
        rollouts: Rollouts of the search, those of the held-out set left out.
        recorded: Rollouts that were recorded elsewhere and read.
        traces: Which of those there are, why others were not read, and who had answered them.
        heldout_rollouts: Those of the held-out set.
        seed_score: The student's score on validation.
        best_score: The result's; until then the best so far.
        heldout_before: The student's score on the held-out rows; ``None`` where none were read.
        per_point: What a point above a serial baseline has cost, in a sentence.
        dollars: ``None`` where the price of one call is not known.
        reason: Why it ended.
        supports_claims: Whether its figures support a claim: 1 or 0. A run that is not over, or
            has failed, supports none.
    """

    id: int
    name: str
    state: str
    program: str
    models: Mapping[str, str]
    created: float
    finished: float | None
    seed: int | None
    simulated: int
    evaluator: str | None
    updates: int
    rollouts: int
    limits: Mapping[str, float | None]
    heldout_rollouts: int
    recorded: int
    traces: str | None
    seed_score: float | None
    best_score: float | None
    heldout_before: float | None
    heldout_after: float | None
    heldout_difference: float | None
    heldout_low: float | None
    heldout_high: float | None
    heldout_n: int | None
    heldout_look: int | None
    per_point: str | None
    calls: int
    tokens: int
    dollars: float | None
    reason: str | None
    supports_claims: int

    @property
    def verdict(self) -> Verdict | None:
        """What the held-out figures show; ``None`` where none were read."""
        if not self.heldout_n:
            return None
        return judge_difference(
            self.heldout_difference or 0.0,
            self.heldout_low or 0.0,
            self.heldout_high or 0.0,
            self.heldout_n,
        )

    def columns(self) -> dict[str, object]:
        """Return the figures by name, in their order."""
        return {column.name: getattr(self, column.name) for column in fields(self)}


def summarize_runs(reader: Reader) -> list[RunFigures]:
    """Return the figures of all runs of a journal, oldest first.

    Raises:
        JournalDamagedError: A row cannot be read.
    """
    return [figures_of(reader, row[0]) for row in reader.rows("SELECT id FROM run ORDER BY id")]


def figures_of(reader: Reader, run: int) -> RunFigures:
    """Return the figures of one run.

    Raises:
        ArgumentValueError: The journal has no such run.
        JournalDamagedError: A row cannot be read.
    """
    history = RunHistory(reader, run)
    record, about, result = history.record, history.about, history.result
    seed_score, best_score = _validation_scores(history)
    if result is not None and result.best_score is not None:
        best_score = result.best_score
    heldout, priced = history.last(HeldoutRead), history.last(PointPriced)
    stopped = history.last(RunStopped)
    rollouts, heldout_rollouts, recorded = reader.rows(RUN_ROLLOUTS, (run,))[0]
    costs = reader.rows(COSTS, (run,))[0]
    return RunFigures(
        id=record.id,
        name=record.name,
        state=record.state,
        program=about.program,
        models=about.models,
        created=record.created,
        finished=record.finished,
        seed=record.seed,
        simulated=int(about.simulated),
        evaluator=about.evaluator,
        updates=history.count(UpdateEnded),
        rollouts=int(rollouts),
        limits=about.limits,
        heldout_rollouts=int(heldout_rollouts),
        recorded=int(recorded),
        traces=about.traces or None,
        seed_score=seed_score,
        best_score=best_score,
        **{f"heldout_{name}": getattr(heldout, name, None) for name in _HELDOUT},
        per_point=(priced.text if priced else NO_BASELINE) if heldout and heldout.n else None,
        calls=costs["calls"],
        tokens=costs["prompt_tokens"] + costs["completion_tokens"],
        dollars=costs["dollars"],
        reason=stopped.reason if stopped else None,
        supports_claims=int(
            result is not None
            and record.state == "finished"
            and isinstance(result.heldout, Mapping)
            and result.warnings == ()
        ),
    )


def _validation_scores(history: RunHistory) -> tuple[float | None, float | None]:
    """Return the student's score on validation, and that of the last candidate that was best."""
    seed_score = best_score = None
    for entry in history.entries(CandidateValidated):
        if entry.event.index == 0 and seed_score is None:
            seed_score = entry.event.score
        if entry.event.best:
            best_score = entry.event.score
    return seed_score, best_score
