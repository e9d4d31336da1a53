"""What a run amounts to for MLflow: metrics by update and at its end, and a description."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from combee_dspy.events import (
    BatchPlanned,
    CandidateValidated,
    PointPriced,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
)
from combee_dspy.journal import Entry, RunHistory, failure_counts, outcomes
from combee_dspy.tracking._costs import CallCosts, costs_by_role
from combee_dspy.tracking._lessons import count_lessons
from combee_dspy.tracking._runs import figures_of
from combee_dspy.tracking._text import cut

MAX_TAG = 8_000
"""Characters of a tag's value, and of a run's description."""

_MOST_WARNINGS = 10
# Rollouts of all updates up to one that had ended by then, and the mean score on its minibatch.
_ROLLOUTS = """
SELECT count(*), avg(CASE WHEN step = ?2 AND purpose = 'train' THEN score END) FROM effect
WHERE run = ?1 AND kind = 'rollout' AND step <= ?2 AND ended <= ?3 AND purpose <> 'heldout'"""


def update_metrics(history: RunHistory, update: Entry[UpdateEnded]) -> dict[str, float]:
    """Return the metrics of one update; sums are over all updates up to this one.

    Later events and effects are not read: the figures stay the same, however much the journal has
    grown since. What is decided later about lessons is no part of the update either.
    """
    step = update.step
    metrics: dict[str, float] = {}
    retained: list[float] = []
    kinds = (CandidateValidated, BatchPlanned, ScanEnded)
    for entry in history.entries(*kinds, upto=update.id, last_step=step):
        match entry.event:
            case CandidateValidated(score=float() as score, best=best, index=index):
                if best:
                    metrics["score/best"] = score
                if index and entry.step == step:
                    # One value a step: the best of several children.
                    metrics["score/candidate"] = max(score, metrics.get("score/candidate", score))
            case BatchPlanned(size=size) if entry.step == step:
                metrics["batch/size"] = size
            case ScanEnded(retained=reflections) if reflections and entry.step == step:
                retained.append(fmean(reflection.covered for reflection in reflections))
    if retained:
        metrics["scan/kept"] = fmean(retained)
    ended = (history.run, step, update.at)
    metrics["cost/rollouts"], score = history.reader.rows(_ROLLOUTS, ended)[0]
    if score is not None:
        metrics["score/train"] = score
    metrics |= count_lessons(history, upto=update.id, last_step=step)
    costs = costs_by_role(history, last_step=step, until=update.at)
    metrics |= _by_role(cost for cost in costs if not cost.heldout)
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _by_role(costs: Iterable[CallCosts]) -> dict[str, float]:
    """Return costs by role and as a whole.

    A model without a price takes nothing from the others: dollars are those that are known, beside
    ``cost/unpriced_calls``. Where none is known there is no number, least of all 0.
    """
    amounts: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        amounts[f"tokens/{cost.role}"] += cost.tokens
        if cost.unpriced < cost.calls:
            amounts[f"dollars/{cost.role}"] += cost.known_dollars
            amounts["cost/dollars"] += cost.known_dollars
        if cost.unpriced:
            amounts["cost/unpriced_calls"] += cost.unpriced
    return amounts


def end_metrics(history: RunHistory) -> dict[str, float]:
    """Return the metrics of a run that is over: the result's scores, and the sums of everything,
    the reading of the held-out set included.
    """
    figures, priced = figures_of(history), history.last(PointPriced)
    metrics = {
        # Not score/best: the program that is returned may be another than the last update's best,
        # and is judged again.
        "score/chosen": figures.best_score,
        "score/heldout_before": figures.heldout.before if figures.heldout else None,
        "score/heldout": figures.heldout.after if figures.heldout else None,
        "cost/dollars_a_point": priced.dollars if priced else None,
        "cost/gpu_seconds": figures.costs.gpu_seconds,
        "cost/heldout_rollouts": figures.heldout_rollouts or None,
        "cost/rollouts": figures.rollouts,
        "cost/seconds": figures.seconds,
        **_by_role(costs_by_role(history)),
        **count_lessons(history),
    }
    return {name: float(value) for name, value in metrics.items() if value is not None}


def description(history: RunHistory) -> str:
    """Return a run's description, the headline first: MLflow shows about three lines."""
    figures = figures_of(history)
    lines = []
    if (held := figures.heldout) is not None and held.n:
        interval = f"{held.difference:+.3f}, interval {held.low:+.3f} to {held.high:+.3f}"
        change = f"{held.before:.3f} → {held.after:.3f} ({interval})"
        lines.append(f"Held-out {figures.verdict}: {change}.")
        lines.append(f"Cost per held-out point: {figures.per_point}.")
    if figures.seed_score is not None and figures.best_score is not None:
        lines.append(f"Validation {figures.seed_score:.3f} → {figures.best_score:.3f}.")
    if figures.about.simulated:
        lines.append("The models are simulated: this run supports no claim about a model.")
    elif not figures.supports_claims:
        lines.append("This run supports no claim.")
    lines.extend(
        f"Failed: {failure}."
        for failure in failure_counts(outcomes(history.reader, figures.record.id))
    )
    reason = f": {figures.reason}" if figures.reason else ""
    lines.append(f"{figures.record.state.capitalize()}{reason}.")
    costs = figures.costs
    counts = f"{figures.rollouts} rollouts, {costs.calls} LM calls, {costs.tokens} tokens"
    lines.append(f"{counts}, {costs}.")
    warnings = itertools.islice(history.entries(WarningRaised), _MOST_WARNINGS)
    lines.extend(f"Warning: {entry.event.text}" for entry in warnings)
    return cut("\n\n".join(lines), MAX_TAG)
