"""What the page says of a run, gathered from its journal as JSON values."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from combee_dspy.evaluation import Receipt
from combee_dspy.events import (
    BatchPlanned,
    HeldoutRead,
    PairScored,
    ScanEnded,
    ScanReflection,
    ShadowsCounted,
    UpdateEnded,
)
from combee_dspy.journal import Entry, Reader, RunHistory
from combee_dspy.tracking._candidates import chosen_of, recorded
from combee_dspy.tracking._learned import diffs, learned
from combee_dspy.tracking._params import title
from combee_dspy.tracking._queries import audit_of, costs_of, problems_of, suspicious_in
from combee_dspy.tracking._runs import RunFigures, figures_of
from combee_dspy.tracking._spending import budget_use, read_spending, spending_rows, times_of
from combee_dspy.tracking._sql import COSTS
from combee_dspy.tracking._text import dollars
from combee_dspy.tracking.report._effects import (
    WHAT,
    Place,
    answers_of,
    flips_of,
    grid_of,
    latency_of,
    rollouts_behind,
    table_of_rollouts,
    work_of,
)
from combee_dspy.tracking.report._lessons import lesson_facts
from combee_dspy.tracking.report._looked_up import lookup_facts
from combee_dspy.tracking.report._scans import scan_facts
from combee_dspy.tracking.report._search import candidate_facts, operator_facts

__all__ = ["facts"]

_MOST_BEHIND = 5
_MOST_DRAWN = 40
_Row = Mapping[str, Any]


def facts(reader: Reader, run: int) -> dict[str, Any]:
    """Return the facts of one run. A run that is going on has fewer."""
    history = RunHistory(reader, run)
    about, figures = history.about, figures_of(reader, run)
    row = {**figures.columns(), "began": _date(figures.created), "ended": _date(figures.finished)}
    updates = list(history.entries(UpdateEnded))
    candidates = recorded(reader, run)
    chosen = chosen_of(candidates)
    total = reader.rows(COSTS, (run,))[0]
    spent, paid = _spent(reader, run), read_spending(reader, run, times_of(candidates))
    scores = [candidate["score"] for candidate in candidates if candidate["score"] is not None]
    heldout = _heldout(history, figures)
    seconds = [update.event.seconds for update in updates]
    work_total, latency = latency_of(reader, run, seconds)
    scans = sorted(history.entries(ScanEnded), key=lambda scan: scan.step)
    lines = learned(chosen, candidates) if chosen else []
    return {
        "run": row,
        "title": title(history),
        "about": {name: getattr(about, name) for name in ("models", "sizes", "versions")},
        "per_point": figures.per_point,
        "evaluator": figures.evaluator,
        "audit": audit_of(reader, run),
        "seconds": figures.finished - figures.created if figures.finished else None,
        "dollars": dollars(total["known_dollars"], total["unpriced"]),
        **problems_of(reader, run),
        "percent": all(
            0 <= score <= 1
            for score in (*scores, figures.heldout_before or 0, figures.heldout_after or 0)
        ),
        "seed_score": figures.seed_score,
        "best_score": (
            figures.best_score if figures.best_score is not None else max(scores, default=None)
        ),
        "heldout": heldout,
        "flips": (
            flips_of(reader, run, candidates[0]["candidate"], chosen["candidate"])
            if heldout and chosen
            else {}
        ),
        "chosen": chosen,
        "answers": (
            answers_of(reader, run, candidates[0]["candidate"], chosen["candidate"])
            if chosen
            else []
        ),
        "budget": budget_use(paid, candidates, figures),
        "search": paid.total.columns(),
        "learned": _with_reasons(lines, scans, updates, reader, run),
        "suspicious": suspicious_in(reader, run, chosen["candidate"]) if chosen else [],
        "diffs": diffs(candidates[0]["texts"], chosen["texts"]) if chosen else {},
        "candidates": candidate_facts(paid, candidates, figures.created),
        "operators": operator_facts(candidates, history),
        "validated": len(scores),
        "scans": [scan_facts(scan) for scan in scans],
        "grid": grid_of(reader, run, _drawn(candidates)),
        "lessons": lesson_facts(reader, run, chosen.get("texts", {})),
        "looked_up": lookup_facts(history, chosen, candidates),
        "spent": spent,
        "updates_with_cost": len({amount["when"] for amount in spent}),
        "costs": costs_of(reader, run),
        "spending": spending_rows(paid, candidates, figures),
        "canary": _canary(history) if about.serving else {},
        **_batches(history, updates),
        "rolls": table_of_rollouts(reader, run, figures.created),
        "work": work_of(reader, run, figures.created),
        "work_total": work_total,
        "latency": latency,
        "commits": [
            update.event.started + update.event.seconds - figures.created for update in updates
        ],
    }


def _date(at: float | None) -> str:
    """Return a Unix time in UTC: a page is read anywhere."""
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _drawn(candidates: Sequence[_Row]) -> dict[str, str]:
    """Return what the grid calls the student, the newest validated candidates and the chosen one,
    by hash.
    """
    validated = [row for row in candidates if row["index"] is not None]
    newest = validated[:1] + validated[1:][-_MOST_DRAWN:]
    return {
        row["candidate"]: f"{row['index']} {row['operator']}"
        for row in validated
        if row in newest or row["selected"]
    }


def _heldout(history: RunHistory, figures: RunFigures) -> dict[str, Any]:
    if figures.verdict is None:
        return {}
    differences = [
        entry.event.difference for entry in history.entries(Receipt) if entry.event.difference
    ]
    names = ("before", "after", "difference", "low", "high", "n")
    return {
        **{name: getattr(figures, f"heldout_{name}") for name in names},
        "verdict": str(figures.verdict),
        "tone": figures.verdict.tone,
        "confidence": differences[-1].confidence if differences else None,
        "looks": [asdict(entry.event) for entry in history.entries(HeldoutRead)],
    }


def _canary(history: RunHistory) -> dict[str, Any]:
    """Return what one server has seen of each version, and what became of its shadows."""
    sql = (
        "SELECT candidate || ' ' || purpose AS version, count(*) AS requests, count(error) AS"
        " errors, avg(ended - started) AS seconds, avg(score) AS score FROM effect WHERE run = ?"
        " AND kind = 'rollout' GROUP BY 1 ORDER BY 1"
    )
    pairs, total = 0, 0.0
    for entry in history.entries(PairScored):
        pairs, total = pairs + 1, total + entry.event.after - entry.event.before
    shadows = history.last(ShadowsCounted)
    return {
        "versions": [dict(row) for row in history.reader.rows(sql, (history.run,))],
        "pairs": pairs,
        "difference": total / pairs if pairs else None,
        "shadows": dict(shadows.counts) if shadows else {},
    }


def _with_reasons(
    lines: list[dict[str, Any]],
    scans: Sequence[Entry[ScanEnded]],
    updates: Sequence[Entry[UpdateEnded]],
    reader: Reader,
    run: int,
) -> list[dict[str, Any]]:
    """Add to each line the reflections that the lesson in it covers, as the rollouts that they are
    about.
    """
    parents = {update.step: update.event.parent for update in updates}
    places: list[list[Place]] = [
        [
            (parents.get(scan.step, ""), reflection.example)
            for scan in scans
            if scan.step == line["step"] and scan.component == line["part"].split("::")[0]
            for reflection in _covered(scan.event, line["text"])
            if reflection.example
        ]
        for line in lines
    ]
    quoted = {place for behind in places for place in behind[:_MOST_BEHIND]}
    rollouts = rollouts_behind(reader, run, quoted)
    for line, behind in zip(lines, places, strict=True):
        of_line = behind[:_MOST_BEHIND]
        line["behind"] = [rollouts[place] for place in of_line if place in rollouts]
        line["reflections"] = len(behind)
    return lines


def _covered(scan: ScanEnded, line: str) -> Iterator[ScanReflection]:
    """Return the reflections that lessons within a line cover."""
    texts = {number: lesson.text.strip() for number, lesson in enumerate(scan.lessons)}
    within = {number for number, text in texts.items() if text and text in line}
    return (reflection for reflection in scan.retained if reflection.lesson in within)


def _spent(reader: Reader, run: int) -> list[dict[str, Any]]:
    """Return what LM calls took by role and update, the held-out set apart."""
    sql = (
        "SELECT CASE WHEN e.purpose = 'heldout' THEN 'held-out'"  # noqa: S608 - constants
        " WHEN e.step < 0 THEN 'before' ELSE '' || e.step END"
        f' AS "when", {WHAT.format("u.role")} AS what, sum(u.prompt_tokens + u.completion_tokens)'
        " AS tokens, sum(u.calls) AS calls, total(u.seconds) AS seconds"
        " FROM usage u JOIN effect e ON e.id = u.effect WHERE e.run = ? GROUP BY 1, 2"
        " ORDER BY e.purpose = 'heldout', e.step, 2"
    )
    return [dict(row) for row in reader.rows(sql, (run,))]


def _batches(history: RunHistory, updates: Sequence[Entry[UpdateEnded]]) -> dict[str, Any]:
    """Return the sizes, the last law, and the seconds an epoch took at each size as the law was
    fitted to them.

    A size counts with the median of its updates. A law knows what was committed before it was
    fitted.
    """
    plans = list(history.entries(BatchPlanned))
    last = next((plan for plan in reversed(plans) if plan.event.fit is not None), None)
    rows = history.about.sizes.get("train", 0)
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for update in updates:
        learned_from = update.event.rows if not update.event.skipped else 0
        if learned_from and (last is None or update.id < last.id):
            seconds[learned_from].append(update.event.seconds)
    names = ("size", "reason")
    return {
        "batches": [
            {
                "step": plan.step,
                **{name: getattr(plan.event, name) for name in names},
                "clamps": [asdict(clamp) for clamp in plan.event.clamps],
            }
            for plan in plans
        ],
        "delays": [
            {"size": size, "seconds": statistics.median(measured) * rows / size}
            for size, measured in sorted(seconds.items())
        ],
        "law": asdict(last.event.fit) if last and last.event.fit else None,
    }
