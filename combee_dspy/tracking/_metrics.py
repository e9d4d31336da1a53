"""What a run amounts to for MLflow: parameters before it, metrics by update, a description after
it.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

from combee_dspy.events import (
    BatchPlanned,
    CandidateProposed,
    CandidateScreened,
    CandidateValidated,
    ChildRefused,
    ErrorRaised,
    Event,
    PointPriced,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
)
from combee_dspy.journal import Reader, RunHistory, failure_counts, outcomes
from combee_dspy.tracking._lessons import count_lessons
from combee_dspy.tracking._params import name_of
from combee_dspy.tracking._runs import figures_of
from combee_dspy.tracking._sql import COSTS, SPENT
from combee_dspy.tracking._text import cut, dollars

__all__ = [
    "MAX_TAG",
    "charted",
    "description",
    "end_metrics",
    "update_metrics",
]

MAX_TAG = 8_000
"""Characters of a tag's value, and of a run's description."""

_MOST_WARNINGS = 10
_HELDOUT = ("before", "after", "difference", "low", "high", "n")


_CHARTED = {
    "val/best": "score/best",
    "val/candidate": "score/candidate",
    "train/train": "score/train",
    "best_score": "score/chosen",
    "heldout/before": "score/heldout_before",
    "heldout/after": "score/heldout",
    "cost/rollouts": "cost/rollouts",
    "cost/dollars": "cost/dollars",
    "cost/unpriced_calls": "cost/unpriced_calls",
    "cost/heldout_rollouts": "cost/heldout_rollouts",
    "time/run": "cost/seconds",
    "total/gpu_seconds": "cost/gpu_seconds",
    "per_point/dollars": "cost/dollars_a_point",
    "batch/size": "batch/size",
    "scan/covered": "scan/kept",
}


def charted(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what people chart, by its name in MLflow: a dozen metrics, tokens and dollars by role,
    and lessons by state.

    The rest is a file.
    """
    groups = {
        name: value
        for name, value in metrics.items()
        if name.startswith(("tokens/", "dollars/", "lessons/"))
    }
    return groups | {_CHARTED[name]: value for name, value in metrics.items() if name in _CHARTED}


def update_metrics(
    reader: Reader, run: int, step: int, *, event: int, effect: int
) -> dict[str, float]:
    """Return the metrics of one update that is over; sums are over all updates up to this one.

    Events and effects with larger ids than the given ones are not read: the same
    bounds give the same figures, however much the journal has grown since.
    """
    history = RunHistory(reader, run)
    metrics = _event_metrics(history, step, event)
    sql = (
        "SELECT purpose, count(*), avg(score), count(error), avg(ended - started) FROM effect WHERE"
        " run = ? AND kind = 'rollout' AND step = ? AND id <= ? AND purpose <> 'heldout' GROUP BY 1"
    )
    for purpose, count, score, errors, seconds in reader.rows(sql, (run, step, effect)):
        metrics[f"rollouts/{purpose}"], metrics[f"rollouts/{purpose}_errors"] = count, errors
        metrics[f"time/{purpose}_rollout"] = seconds
        if purpose in ("train", "screen") and score is not None:
            metrics[f"train/{purpose}"] = score
    sql = "SELECT count(*) FROM effect WHERE run = ? AND kind = 'recorded' AND step = ? AND id <= ?"
    metrics["rollouts/recorded"] = reader.rows(sql, (run, step, effect))[0][0]
    # As the update left the book: what is decided later, also about its lessons, is no part of it.
    ends = [entry.id for entry in history.entries(UpdateEnded) if entry.step == step]
    metrics |= count_lessons(history, max(ends, default=0), step)
    sql = (
        "SELECT count(*) FROM effect"
        " WHERE run = ? AND kind = 'rollout' AND id <= ? AND step <= ? AND purpose <> 'heldout'"
    )
    metrics["cost/rollouts"] = reader.rows(sql, (run, effect, step))[0][0]
    before = SPENT.format("e.step <= ? AND e.purpose <> 'heldout'")
    metrics |= _by_role(reader.rows(before, (run, effect, step)))
    return {name_of(name): float(value) for name, value in metrics.items() if math.isfinite(value)}


def _by_role(spent: Sequence[sqlite3.Row]) -> dict[str, float]:
    """Return what rows of ``SPENT`` amount to, by role and as a whole.

    A model without a price takes nothing from the others: dollars are those that are known, beside
    ``cost/unpriced_calls``. Where none is known there is no number, least of all 0.
    """
    amounts: dict[str, float] = {}
    for role, calls, tokens, dollars_known, unpriced in spent:
        amounts |= {f"calls/{role}": calls, f"tokens/{role}": tokens}
        if unpriced < calls:
            amounts[f"dollars/{role}"] = dollars_known
            amounts["cost/dollars"] = amounts.get("cost/dollars", 0.0) + dollars_known
        if unpriced:
            amounts["cost/unpriced_calls"] = amounts.get("cost/unpriced_calls", 0) + unpriced
    return amounts


def _event_metrics(history: RunHistory, step: int, upto: int) -> defaultdict[str, float]:
    """Return what the events of an update say, and the validation scores until then."""
    metrics: defaultdict[str, float] = defaultdict(float)
    shares: list[float] = []
    for entry in history.entries(*_COUNTED, upto=upto, last_step=step):
        event = entry.event
        if isinstance(event, CandidateValidated):
            _add_validation(metrics, event, of_step=entry.step == step)
        elif entry.step != step:
            continue
        elif isinstance(event, ScanEnded):
            _add_scan(metrics, shares, event)
        else:
            _add_event(metrics, event)
    if shares:
        metrics["scan/covered"] = sum(shares) / len(shares)
    return metrics


def _add_scan(metrics: dict[str, float], shares: list[float], event: ScanEnded) -> None:
    metrics["scan/reflections"] += event.n
    metrics["scan/nodes"] += len(event.nodes)
    metrics["scan/failed_nodes"] += event.failed
    metrics["scan/lessons"] += len(event.lessons)
    if event.retained:
        covered = sum(reflection.covered for reflection in event.retained)
        shares.append(covered / len(event.retained))


def _add_event(metrics: dict[str, float], event: Event) -> None:
    match event:
        case UpdateEnded(seconds=seconds):
            metrics["time/update"] = seconds
        case BatchPlanned(size=size, clamps=clamps, fit=fit):
            metrics["batch/size"], metrics["batch/clamps"] = size, len(clamps)
            if fit is not None:
                metrics["batch/plateau"], metrics["batch/exponent"] = fit.plateau, fit.exponent
        case CandidateScreened(accepted=accepted):
            metrics["candidates/screened"] += 1
            metrics["candidates/screened_out"] += not accepted
        case _:
            metrics[_COUNTERS[type(event)]] += 1


_COUNTERS: Mapping[type[Event], str] = {
    CandidateProposed: "candidates/proposed",
    ChildRefused: "candidates/refused",
    WarningRaised: "warnings",
    ErrorRaised: "errors",
}
_COUNTED: tuple[type[Event], ...] = (
    CandidateValidated,
    UpdateEnded,
    BatchPlanned,
    ScanEnded,
    CandidateScreened,
    *_COUNTERS,
)


def _add_validation(metrics: dict[str, float], event: CandidateValidated, *, of_step: bool) -> None:
    if event.score is None:
        return
    if event.index == 0:
        metrics["val/seed"] = event.score
    if event.best:
        metrics["val/best"] = event.score
    if of_step and event.index:
        # One value a step: the best of several children.
        metrics["val/candidate"] = max(event.score, metrics.get("val/candidate", -math.inf))


def end_metrics(reader: Reader, run: int) -> dict[str, float]:
    """Return the metrics of a run that is over: the result's scores, and the sums of everything,
    the reading of the held-out set included.
    """
    history = RunHistory(reader, run)
    figures, total = figures_of(reader, run), reader.rows(COSTS, (run,))[0]
    priced = history.last(PointPriced)
    prices = ("points", "rollouts", "tokens", "dollars", "gpu_seconds", "seconds")
    metrics = {
        # Not val/best: the program that is returned may be another than the last update's best, and
        # is judged again.
        "best_score": figures.best_score,
        **{f"heldout/{name}": getattr(figures, f"heldout_{name}") for name in _HELDOUT},
        **{f"per_point/{name}": getattr(priced, name) for name in prices if priced},
        **{f"total/{name}": getattr(figures, name) for name in ("rollouts", "updates", "tokens")},
        **{
            f"total/{name}": total[name]
            for name in ("calls", "errors", "cached", "dollars", "gpu_seconds")
        },
        "total/unpriced_calls": total["unpriced"],
        **_by_role(reader.rows(SPENT.format("1"), (run, sys.maxsize))),
        "cost/heldout_rollouts": figures.heldout_rollouts or None,
        **count_lessons(history),
        "time/run": figures.finished - figures.created if figures.finished else None,
    }
    return {name: float(value) for name, value in metrics.items() if value is not None}


def description(reader: Reader, run: int) -> str:
    """Return a run's description, the headline first: MLflow shows about three lines."""
    figures, total = figures_of(reader, run), reader.rows(COSTS, (run,))[0]
    lines = []
    if figures.heldout_n:
        held = "Held-out {}: {:.3f} → {:.3f} ({:+.3f}, interval {:+.3f} to {:+.3f}, n = {})."
        numbers = (getattr(figures, f"heldout_{name}") for name in _HELDOUT)
        lines.append(held.format(figures.gain, *numbers))
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
