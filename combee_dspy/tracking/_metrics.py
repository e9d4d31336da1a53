"""What a run amounts to for MLflow: metrics by update and at its end, and a description."""

from __future__ import annotations

import itertools
import math
import sqlite3
import sys
from collections.abc import Sequence
from statistics import fmean

from combee_dspy.events import (
    BatchPlanned,
    CandidateValidated,
    PointPriced,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
)
from combee_dspy.journal import Reader, RunHistory, failure_counts, outcomes
from combee_dspy.tracking._lessons import count_lessons
from combee_dspy.tracking._runs import figures_of
from combee_dspy.tracking._sql import COSTS, SPENT
from combee_dspy.tracking._text import cut, dollars

__all__ = ["MAX_TAG", "description", "end_metrics", "update_metrics"]

MAX_TAG = 8_000
"""Characters of a tag's value, and of a run's description."""

_MOST_WARNINGS = 10
_HELDOUT = ("before", "after", "difference", "low", "high")
# Rollouts up to an effect: of all updates until one, and the mean score on its minibatch.
_ROLLOUTS = """
SELECT count(*), avg(CASE WHEN step = ?3 AND purpose = 'train' THEN score END) FROM effect
WHERE run = ?1 AND kind = 'rollout' AND id <= ?2 AND step <= ?3 AND purpose <> 'heldout'"""


def update_metrics(
    reader: Reader, run: int, step: int, *, event: int, effect: int
) -> dict[str, float]:
    """Return the metrics of one update that is over; sums are over all updates up to this one.

    Events and effects with larger ids than the given ones are not read: the same
    bounds give the same figures, however much the journal has grown since.
    """
    history = RunHistory(reader, run)
    metrics: dict[str, float] = {}
    shares: list[float] = []
    events = (CandidateValidated, BatchPlanned, ScanEnded)
    for entry in history.entries(*events, upto=event, last_step=step):
        match entry.event:
            case CandidateValidated(score=float() as score, best=best, index=index):
                if best:
                    metrics["score/best"] = score
                if index and entry.step == step:
                    # One value a step: the best of several children.
                    metrics["score/candidate"] = max(score, metrics.get("score/candidate", score))
            case BatchPlanned(size=size) if entry.step == step:
                metrics["batch/size"] = size
            case ScanEnded(retained=retained) if retained and entry.step == step:
                shares.append(fmean(reflection.covered for reflection in retained))
    if shares:
        metrics["scan/kept"] = fmean(shares)
    metrics["cost/rollouts"], score = reader.rows(_ROLLOUTS, (run, effect, step))[0]
    if score is not None:
        metrics["score/train"] = score
    # As the update left the book: what is decided later, also about its lessons, is no part of it.
    ends = [entry.id for entry in history.entries(UpdateEnded) if entry.step == step]
    metrics |= count_lessons(history, max(ends, default=0), step)
    before = SPENT.format("e.step <= ? AND e.purpose <> 'heldout'")
    metrics |= _by_role(reader.rows(before, (run, effect, step)))
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _by_role(spent: Sequence[sqlite3.Row]) -> dict[str, float]:
    """Return what rows of ``SPENT`` amount to, by role and as a whole.

    A model without a price takes nothing from the others: dollars are those that are known, beside
    ``cost/unpriced_calls``. Where none is known there is no number, least of all 0.
    """
    amounts: dict[str, float] = {}
    for role, calls, tokens, dollars_known, unpriced in spent:
        amounts[f"tokens/{role}"] = tokens
        if unpriced < calls:
            amounts[f"dollars/{role}"] = dollars_known
            amounts["cost/dollars"] = amounts.get("cost/dollars", 0.0) + dollars_known
        if unpriced:
            amounts["cost/unpriced_calls"] = amounts.get("cost/unpriced_calls", 0) + unpriced
    return amounts


def end_metrics(reader: Reader, run: int) -> dict[str, float]:
    """Return the metrics of a run that is over: the result's scores, and the sums of everything,
    the reading of the held-out set included.
    """
    history = RunHistory(reader, run)
    figures, priced = figures_of(reader, run), history.last(PointPriced)
    metrics = {
        # Not score/best: the program that is returned may be another than the last update's best,
        # and is judged again.
        "score/chosen": figures.best_score,
        "score/heldout_before": figures.heldout_before,
        "score/heldout": figures.heldout_after,
        "cost/dollars_a_point": priced.dollars if priced else None,
        "cost/gpu_seconds": reader.rows(COSTS, (run,))[0]["gpu_seconds"],
        "cost/heldout_rollouts": figures.heldout_rollouts or None,
        "cost/rollouts": figures.rollouts,
        "cost/seconds": figures.finished - figures.created if figures.finished else None,
        **_by_role(reader.rows(SPENT.format("1"), (run, sys.maxsize))),
        **count_lessons(history),
    }
    return {name: float(value) for name, value in metrics.items() if value is not None}


def description(reader: Reader, run: int) -> str:
    """Return a run's description, the headline first: MLflow shows about three lines."""
    figures, total = figures_of(reader, run), reader.rows(COSTS, (run,))[0]
    lines = []
    if figures.heldout_n:
        held = "Held-out {}: {:.3f} → {:.3f} ({:+.3f}, interval {:+.3f} to {:+.3f})."
        numbers = (getattr(figures, f"heldout_{name}") for name in _HELDOUT)
        lines.append(held.format(figures.verdict, *numbers))
        lines.append(f"Cost per held-out point: {figures.per_point}.")
    if figures.seed_score is not None and figures.best_score is not None:
        lines.append(f"Validation {figures.seed_score:.3f} → {figures.best_score:.3f}.")
    if figures.simulated:
        lines.append("The models are simulated: this run supports no claim about a model.")
    elif not figures.supports_claims:
        lines.append("This run supports no claim.")
    lines.extend(f"Failed: {failure}." for failure in failure_counts(outcomes(reader, run)))
    reason = f": {figures.reason}" if figures.reason else ""
    lines.append(f"{figures.state.capitalize()}{reason}.")
    spent = dollars(total["known_dollars"], total["unpriced"])
    counts = f"{figures.rollouts} rollouts, {figures.calls} LM calls, {figures.tokens} tokens"
    lines.append(f"{counts}, {spent}.")
    warnings = itertools.islice(RunHistory(reader, run).entries(WarningRaised), _MOST_WARNINGS)
    lines.extend(f"Warning: {entry.event.text}" for entry in warnings)
    return cut("\n\n".join(lines), MAX_TAG)
