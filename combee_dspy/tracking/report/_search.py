"""Candidates and operators, for the page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.events import ChildRefused
from combee_dspy.journal import RunHistory
from combee_dspy.tracking._learned import gain
from combee_dspy.tracking._spending import Spending

__all__ = ["candidate_facts", "operator_facts"]

_Row = Mapping[str, Any]


def operator_facts(candidates: Sequence[_Row], history: RunHistory) -> list[dict[str, Any]]:
    """Return what came of each operator's children: refused, screened out, validated, and what each
    gained.
    """
    scores = {candidate["candidate"]: candidate["score"] for candidate in candidates}
    refused = Counter(entry.event.operator for entry in history.entries(ChildRefused))
    children: dict[str, list[_Row]] = {}
    for candidate in candidates:
        if candidate["parents"]:
            children.setdefault(candidate["operator"], []).append(candidate)
    rows = []
    for name in dict.fromkeys([*children, *refused]):
        own = children.get(name, [])
        gains = [value for child in own if (value := gain(child, scores)) is not None]
        out = sum(bool(child["screened"]) and not child["screened"]["accepted"] for child in own)
        rows.append(
            {
                "operator": name,
                "refused": refused[name],
                "children": len(own),
                "screened_out": out,
                "gains": gains,
                "mean": statistics.fmean(gains) if gains else None,
                "best": max(gains, default=None),
            }
        )
    return rows


def candidate_facts(
    paid: Spending, candidates: Sequence[_Row], created: float
) -> list[dict[str, Any]]:
    """Return the candidates with what had been spent when each was validated."""
    by_id = {candidate["candidate"]: candidate for candidate in candidates}
    rows = []
    for candidate in candidates:
        axes = {}
        if (at := candidate["validated_at"]) is not None:
            by_then = paid.until[at]
            axes = {
                "rollouts": by_then.rollouts,
                "tokens": by_then.tokens,
                "seconds": at - created,
            }
        rows.append(
            {
                **{name: candidate[name] for name in ("index", "step", "operator", "score")},
                **axes,
                "id": candidate["candidate"][:8],
                "parents": [parent[:8] for parent in _validated(candidate, by_id)],
                "fate": _fate(candidate),
                "chosen": bool(candidate["selected"]),
            }
        )
    return rows


def _validated(candidate: _Row, by_id: Mapping[str, _Row]) -> list[str]:
    """Return the nearest ancestors that have a score: a trunk does not validate every text."""
    nearest: dict[str, None] = {}
    seen, waiting = {candidate["candidate"]}, [*candidate["parents"]]
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in by_id:
            continue
        seen.add(name)
        if by_id[name]["score"] is not None:
            nearest[name] = None
        else:
            waiting = [*by_id[name]["parents"], *waiting]
    return list(nearest)


def _fate(candidate: _Row) -> str:
    screened = candidate["screened"]
    if candidate["selected"]:
        return f"chosen: {candidate['selected']}"
    if screened and not screened["accepted"]:
        return f"refused: {screened['reason']}"
    return "" if candidate["score"] is not None else "not validated"
