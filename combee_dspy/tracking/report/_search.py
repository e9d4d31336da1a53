"""Candidates, operators and scans, for the page."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from combee_dspy.events import ChildRefused, ScanEnded, ScanReflection
from combee_dspy.journal import Entry, RunHistory
from combee_dspy.records import NodeOutput
from combee_dspy.tracking._candidates import CandidateRow, gains_of
from combee_dspy.tracking._spending import Spending

_MOST_DRAWN = 40
_SCORES = (
    "SELECT candidate, example, avg(score) FROM effect WHERE +run = ? AND kind = 'rollout'"
    " AND purpose IN ('validation', 'final') AND score IS NOT NULL GROUP BY 1, 2"
)
_KEPT, _LOST_HERE, _LOST_ON_THE_WAY, _NOT_IN_RESULT, _UNMEASURED = range(5)


def candidate_facts(
    candidates: Sequence[CandidateRow], spending: Spending, created: float
) -> list[dict[str, Any]]:
    """Return the candidates with what had been spent when each was validated.

    ``parents`` are the nearest ancestors with a score: a trunk does not validate every text.
    """
    scored: dict[str, list[str]] = {}  # the nearest with a score, the candidate itself included
    rows = []
    for row in candidates:
        ancestors = [name for parent in row.parents for name in scored.get(parent, ())]
        parents = list(dict.fromkeys(ancestors))
        scored[row.candidate] = parents if row.score is None else [row.candidate]
        facts: dict[str, Any] = {
            "index": row.index,
            "step": row.step,
            "operator": row.operator,
            "score": row.score,
            "id": row.candidate[:8],
            "parents": [parent[:8] for parent in parents],
            "fate": _fate(row),
            "chosen": bool(row.selected),
        }
        if row.validated_at is not None:
            paid = spending.by_time[row.validated_at]
            facts |= {"rollouts": paid.rollouts, "tokens": paid.tokens}
            facts["seconds"] = row.validated_at - created
        rows.append(facts)
    return rows


def _fate(row: CandidateRow) -> str:
    if row.selected:
        return f"chosen: {row.selected}"
    if row.screened and not row.screened.accepted:
        return f"refused: {row.screened.reason}"
    return "" if row.score is not None else "not validated"


def operator_facts(history: RunHistory, candidates: Sequence[CandidateRow]) -> list[dict[str, Any]]:
    """Return what came of each operator's children: refused, screened out, validated, and what
    each gained.
    """
    gains = gains_of(candidates)
    refused = Counter(entry.event.operator for entry in history.entries(ChildRefused))
    children: defaultdict[str, list[CandidateRow]] = defaultdict(list)
    for row in candidates:
        if row.parents:
            children[row.operator].append(row)
    rows = []
    for name in dict.fromkeys([*children, *refused]):
        gained = [gains[row.candidate] for row in children[name] if row.candidate in gains]
        screened = [row.screened for row in children[name] if row.screened]
        rows.append(
            {
                "operator": name,
                "refused": refused[name],
                "children": len(children[name]),
                "screened_out": sum(not screening.accepted for screening in screened),
                "gains": gained,
                "mean": statistics.fmean(gained) if gained else None,
                "best": max(gained, default=None),
            }
        )
    return rows


def grid_facts(history: RunHistory, candidates: Sequence[CandidateRow]) -> dict[str, Any]:
    """Return mean scores by candidate and validation row, the easiest row first.

    Of the student, the newest candidates and the chosen one; empty where all of them are right and
    wrong on the same rows.
    """
    validated = [row for row in candidates if row.index is not None]
    drawn = validated[:1] + validated[1:][-_MOST_DRAWN:]
    names = {
        row.candidate: f"{row.index} {row.operator}"
        for row in validated
        if row in drawn or row.selected
    }
    questions: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for candidate, example, score in history.reader.stream(_SCORES, (history.run,)):
        if candidate in names:
            questions[example][names[candidate]] = score
    if all(len(set(scores.values())) < 2 for scores in questions.values()):
        return {}
    easiest = sorted(questions.values(), key=lambda scores: -statistics.fmean(scores.values()))
    cells = [
        [question, name, round(score, 4)]
        for question, scores in enumerate(easiest)
        for name, score in scores.items()
    ]
    scored = {name for _, name, _ in cells}
    return {"names": [name for name in names.values() if name in scored], "cells": cells}


def scan_facts(entry: Entry[ScanEnded]) -> dict[str, Any]:
    """Return a scan with one cell for each reflection that a call read: kept, lost there, or lost
    elsewhere.
    """
    scan = entry.event
    reflections = {reflection.index: reflection for reflection in scan.retained}
    last = max((node.level for node in scan.nodes), default=1)
    alone = sum(node.level == last for node in scan.nodes) == 1
    nodes = []
    for node in sorted(scan.nodes, key=lambda node: (node.level, node.node)):
        top = node.level == last > 1
        read = [reflections[index] for index in node.sources if index in reflections]
        nodes.append(
            {
                "name": "result" if top and alone else f"{node.level}.{node.node + 1}",
                "cells": [(reflection.index, _state(reflection, node, top)) for reflection in read],
                "lessons": node.lessons,
            }
        )
    states = Counter(_state(reflection, None, top=False) for reflection in scan.retained)
    return {
        "step": entry.step,
        "component": entry.component,
        "aggregator": scan.aggregator,
        "n": scan.n,
        "nodes": nodes,
        "failed": scan.failed,
        "lessons": [lesson.text for lesson in scan.lessons],
        "kept": states[_KEPT],
        "lost": states[_LOST_ON_THE_WAY],
        "unmeasured": states[_UNMEASURED],
    }


def _state(reflection: ScanReflection, node: NodeOutput | None, top: bool) -> int:
    if reflection.covered:
        return _KEPT
    if not reflection.measurable:
        return _UNMEASURED
    if node is not None and reflection.lost_at == (node.level, node.node):
        return _LOST_HERE
    return _NOT_IN_RESULT if top else _LOST_ON_THE_WAY
