"""The figures of a run: scores, held-out figures, costs, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from combee_dspy.events import (
    CandidateValidated,
    HeldoutRead,
    PointPriced,
    RunStopped,
    UpdateEnded,
)
from combee_dspy.journal import Description, Reader, RunHistory, RunRecord
from combee_dspy.records import NO_BASELINE
from combee_dspy.tracking._costs import CallCosts, ModelCosts, costs_by_model, total_costs
from combee_dspy.verdicts import Verdict, judge_difference

_ROLLOUTS = (
    "SELECT total(kind = 'rollout' AND purpose <> 'heldout'),"
    " total(kind = 'rollout' AND purpose = 'heldout'), total(kind = 'recorded')"
    " FROM effect WHERE +run = ? AND kind IN ('rollout', 'recorded')"
)
_HELDOUT = ("before", "after", "difference", "low", "high", "n", "look")
# In their order, with what the budget allows by name (None for any number), why the run ended, and
# what a point above a serial baseline has cost.
_COLUMNS = (
    *("id", "name", "state", "program", "models", "created", "finished", "seed", "simulated"),
    *("evaluator", "updates", "rollouts", "limits", "heldout_rollouts", "recorded", "traces"),
    *("seed_score", "best_score", *(f"heldout_{name}" for name in _HELDOUT), "per_point"),
    *("calls", "tokens", "dollars", "reason", "supports_claims"),
)


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a run amounts to so far.

    Attributes:
        record: Its row in the journal.
        about: What it is.
        costs_by_model: What its LM calls have cost, by role and model.
        costs: All of it.
        updates: Updates that have ended.
        rollouts: Rollouts of the search, those of the held-out set left out.
        heldout_rollouts: Those of the held-out set.
        recorded: Rollouts that were recorded elsewhere and read.
        seed_score: The student's score on validation.
        best_score: The result's; until then the best so far.
        heldout: The held-out figures; ``None`` before they are read.
        per_point: What a point above a serial baseline has cost, in a sentence.
        reason: Why it ended.
        supports_claims: Whether its figures support a claim. A run that is not over, or has failed,
            supports none.
    """

    record: RunRecord
    about: Description
    costs_by_model: tuple[ModelCosts, ...]
    costs: CallCosts
    updates: int
    rollouts: int
    heldout_rollouts: int
    recorded: int
    seed_score: float | None
    best_score: float | None
    heldout: HeldoutRead | None
    per_point: str | None
    reason: str | None
    supports_claims: bool

    @property
    def verdict(self) -> Verdict | None:
        """What the held-out figures show; ``None`` where none were read."""
        held = self.heldout
        if held is None or not held.n:
            return None
        return judge_difference(held.difference, held.low, held.high, held.n)

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds from its beginning to its end; ``None`` while it goes on."""
        return self.record.finished - self.record.created if self.record.finished else None

    def columns(self) -> dict[str, object]:
        """Return the columns of ``combee runs --json``, in their order; truth as 1 or 0."""
        heldout = asdict(self.heldout) if self.heldout else {}
        values = {**asdict(self.about), **asdict(self.record), **asdict(self)}
        values |= {f"heldout_{name}": heldout.get(name) for name in _HELDOUT}
        values |= {name: getattr(self.costs, name) for name in ("calls", "tokens", "dollars")}
        values |= {name: int(values[name]) for name in ("simulated", "supports_claims")}
        values["traces"] = self.about.traces or None
        return {name: values[name] for name in _COLUMNS}


def summarize_runs(reader: Reader) -> list[RunFigures]:
    """Return the figures of all runs of a journal, oldest first.

    Raises:
        JournalDamagedError: A row cannot be read.
    """
    runs = reader.rows("SELECT id FROM run ORDER BY id")
    return [figures_of(RunHistory(reader, run)) for (run,) in runs]


def figures_of(history: RunHistory) -> RunFigures:
    """Return the figures of one run.

    Raises:
        ArgumentValueError: The journal has no such run.
        JournalDamagedError: A row cannot be read.
    """
    record, result = history.record, history.result
    seed_score, best_score = _validation_scores(history)
    if result is not None and result.best_score is not None:
        best_score = result.best_score
    heldout, priced = history.last(HeldoutRead), history.last(PointPriced)
    stopped = history.last(RunStopped)
    rollouts, heldout_rollouts, recorded = map(int, history.reader.rows(_ROLLOUTS, (record.id,))[0])
    costs = costs_by_model(history)
    return RunFigures(
        record=record,
        about=history.about,
        costs_by_model=costs,
        costs=total_costs(costs),
        updates=history.count(UpdateEnded),
        rollouts=rollouts,
        heldout_rollouts=heldout_rollouts,
        recorded=recorded,
        seed_score=seed_score,
        best_score=best_score,
        heldout=heldout,
        per_point=(priced.text if priced else NO_BASELINE) if heldout and heldout.n else None,
        reason=stopped.reason if stopped else None,
        supports_claims=(
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
