"""When a run's effects ran, what they took, and sizes of minibatches, for the page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from combee_dspy.events import BatchPlanned, UpdateEnded
from combee_dspy.journal import Entry, RunHistory

_MOST_SPANS = 20_000
# What an effect was for, the same in every chart; where usage is summed, by whom it was.
_WHAT = """CASE WHEN {0} <> 'task' THEN {0} WHEN e.purpose = 'heldout' THEN 'task: held-out'
  WHEN e.purpose = 'train' THEN 'task: learning' ELSE 'task: checking' END"""
# A metric's feedback on a predictor takes time, and no judge.
_TIMED = """FROM effect e WHERE +e.run = ? AND e.started > 0 AND e.ended > e.started
  AND (e.kind <> 'feedback' OR EXISTS (SELECT 1 FROM usage u WHERE u.effect = e.id))"""
_SECONDS = f"SELECT e.kind, e.ended - e.started {_TIMED}"
_SPANS = f"""SELECT {_WHAT.format("coalesce(e.role, e.kind)")}, e.started,
    e.ended - e.started, e.step {_TIMED} ORDER BY e.started, e.id LIMIT ?"""
_SPENT = f"""SELECT CASE WHEN e.purpose = 'heldout' THEN 'held-out' WHEN e.step < 0 THEN 'before'
        ELSE '' || e.step END AS "when", {_WHAT.format("u.role")} AS what,
    sum(u.prompt_tokens + u.completion_tokens) AS tokens, sum(u.calls) AS calls,
    total(u.seconds) AS seconds
FROM usage u JOIN effect e ON e.id = u.effect WHERE +e.run = ? GROUP BY 1, 2
ORDER BY e.purpose = 'heldout', e.step, 2"""  # noqa: S608 - constants


def time_facts(
    history: RunHistory, created: float, updates: Sequence[Entry[UpdateEnded]]
) -> dict[str, Any]:
    """Return when effects ran and updates ended, in seconds since the run's beginning.

    ``work`` has beginning, seconds and update of each effect that took time, by what it was for: of
    the first ones, where ``work_total`` is more than a page holds. ``latency`` has p50, p95 and p99
    of rollouts, of reads (calls of reflectors and proposers) and of updates.
    """
    work: defaultdict[str, list[list[float]]] = defaultdict(list)
    took: defaultdict[str, list[float]] = defaultdict(list)
    for kind, seconds in history.reader.stream(_SECONDS, (history.run,)):
        took[kind].append(seconds)
    total = sum(map(len, took.values()))
    spans = history.run, _MOST_SPANS
    for what, started, seconds, step in history.reader.stream(_SPANS, spans):
        work[what].append([round(started - created, 4), round(seconds, 4), step])
    ends = [entry.event.started + entry.event.seconds - created for entry in updates]
    took["update"] = [entry.event.seconds for entry in updates]
    names = {"rollouts": "rollout", "reads": "call", "updates": "update"}
    latency = [_quantiles(name, took[kind]) for name, kind in names.items() if len(took[kind]) > 1]
    return {"work": work, "work_total": total, "latency": latency, "commits": ends}


def _quantiles(what: str, seconds: Sequence[float]) -> dict[str, float | str]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"what": what, "n": len(seconds), "p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def spent_facts(history: RunHistory) -> dict[str, Any]:
    """Return what LM calls took by role and update, the held-out set apart."""
    spent = history.reader.rows(_SPENT, (history.run,))
    return {"spent": spent, "updates_with_cost": len({row["when"] for row in spent})}


def batch_facts(history: RunHistory, updates: Sequence[Entry[UpdateEnded]]) -> dict[str, Any]:
    """Return the sizes of minibatches, the last law, and the seconds an epoch took at each size.

    A size counts with the median of its updates, of those that ended before the law was fitted.
    """
    plans = list(history.entries(BatchPlanned))
    fitted = next((plan for plan in reversed(plans) if plan.event.fit is not None), None)
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for update in updates:
        ended = update.event
        if ended.rows and not ended.skipped and (fitted is None or update.id < fitted.id):
            seconds[ended.rows].append(ended.seconds)
    rows = history.about.sizes.get("train", 0)
    return {
        "batches": [{"step": plan.step, **asdict(plan.event)} for plan in plans],
        "delays": [
            {"size": size, "seconds": statistics.median(measured) * rows / size}
            for size, measured in sorted(seconds.items())
        ],
        "law": fitted.event.fit if fitted else None,
    }
