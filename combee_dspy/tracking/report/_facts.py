"""What the page shows of a run, read from its journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from combee_dspy.evaluation import Receipt
from combee_dspy.events import HeldoutRead, ScanEnded, UpdateEnded
from combee_dspy.journal import Entry, RunHistory
from combee_dspy.tracking._candidates import (
    CandidateRow,
    chosen_of,
    read_candidates,
    stand_ins,
)
from combee_dspy.tracking._learned import compare_texts
from combee_dspy.tracking._params import title
from combee_dspy.tracking._queries import facts_of, suspicious_in
from combee_dspy.tracking._runs import RunFigures, figures_of
from combee_dspy.tracking._spending import read_spending
from combee_dspy.tracking.report._lessons import lesson_facts, line_facts
from combee_dspy.tracking.report._lookups import lessons_shown
from combee_dspy.tracking.report._rollouts import answers_of, flips_of, table_of_rollouts
from combee_dspy.tracking.report._search import (
    candidate_facts,
    grid_facts,
    operator_facts,
    scan_facts,
)
from combee_dspy.tracking.report._time import batch_facts, spent_facts, time_facts


def facts(history: RunHistory) -> dict[str, Any]:
    """Return the facts of one run, as records and JSON values. A run that goes on has fewer."""
    figures, created = figures_of(history), history.record.created
    candidates = read_candidates(history)
    spending = read_spending(history, candidates)
    updates = list(history.entries(UpdateEnded))
    scans = sorted(history.entries(ScanEnded), key=lambda scan: scan.step)
    scores = [row.score for row in candidates if row.score is not None]
    held = figures.heldout
    shares = [*scores, held.before, held.after] if held else scores
    best = figures.best_score
    return {
        "run": figures.columns(),
        "title": title(history, scanned=any(scan.event.aggregator for scan in scans)),
        "about": figures.about,
        "began": _date(created),
        "ended": _date(figures.record.finished),
        "seconds": figures.seconds,
        "dollars": str(figures.costs),
        "percent": all(0 <= score <= 1 for score in shares),
        "seed_score": figures.seed_score,
        "best_score": max(scores, default=None) if best is None else best,
        **_heldout_facts(history, figures, candidates),
        "search": spending.total,
        **facts_of(history, figures, candidates, spending),
        **_chosen_facts(history, candidates, scans),
        "candidates": candidate_facts(candidates, spending, created),
        "operators": operator_facts(history, candidates),
        "validated": len(scores),
        "grid": grid_facts(history, candidates),
        "scans": [scan_facts(scan) for scan in scans],
        **spent_facts(history),
        **batch_facts(history, updates),
        **time_facts(history, created, updates),
        "rolls": table_of_rollouts(history),
    }


def _date(at: float | None) -> str:
    """Return a Unix time in UTC: a page is read anywhere."""
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _heldout_facts(
    history: RunHistory, figures: RunFigures, candidates: Sequence[CandidateRow]
) -> dict[str, Any]:
    """Return the held-out figures, empty where none was read, and what became of each question:
    of validation where none was read.
    """
    chosen, verdict = chosen_of(candidates), figures.verdict
    purpose = "validation" if verdict is None else "heldout"
    flips: dict[str, Any] = {}
    if chosen:
        after = stand_ins(candidates, chosen)
        flips = flips_of(history, purpose, candidates[0].candidate, after)
    if figures.heldout is None or verdict is None:
        return {"heldout": {}, "flips": flips}
    receipts = [entry.event.difference for entry in history.entries(Receipt)]
    confidences = [difference.confidence for difference in receipts if difference]
    heldout = {
        **asdict(figures.heldout),
        "verdict": str(verdict),
        "tone": verdict.tone,
        "confidence": confidences[-1] if confidences else None,
        "looks": [entry.event for entry in history.entries(HeldoutRead)],
    }
    return {"heldout": heldout, "flips": flips}


def _chosen_facts(
    history: RunHistory, candidates: Sequence[CandidateRow], scans: Sequence[Entry[ScanEnded]]
) -> dict[str, Any]:
    """Return what is known of the text that was chosen, or the best so far."""
    chosen = chosen_of(candidates)
    lessons = lesson_facts(history, chosen.texts if chosen else {})
    if chosen is None:
        names = ("answers", "learned", "suspicious")
        return {"lessons": lessons, "chosen": None, "diffs": {}, **dict.fromkeys(names, ())}
    student = candidates[0]
    answers = answers_of(history, student.candidate, stand_ins(candidates, chosen))
    lessons_of = lessons_shown(history, chosen.texts, [answer["id"] for answer in answers])
    return {
        "lessons": lessons,
        "chosen": chosen,
        "diffs": compare_texts(student.texts, chosen.texts),
        "answers": [{**answer, "lessons": lessons_of.get(answer["id"], ())} for answer in answers],
        "learned": line_facts(history, chosen, candidates, scans),
        "suspicious": suspicious_in(history.reader, chosen, candidates),
    }
