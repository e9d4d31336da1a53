"""What the page says of a run, gathered from its journal as JSON values."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.journal import Reader, failure_counts, outcomes
from combee_dspy.tracking._learned import diffs, learned
from combee_dspy.tracking._queries import audit_of, candidates_of, chosen_of, costs_of, suspicious_in
from combee_dspy.tracking._sql import ROLLOUT, RUNS
from combee_dspy.tracking._text import cut, dollars

__all__ = ["facts"]

_MOST_ROLLOUTS = 2_000
_MOST_CHARACTERS = 600
_KEPT, _LOST_HERE, _LOST_ON_THE_WAY, _NOT_IN_RESULT, _UNMEASURED = range(5)
_Row = Mapping[str, Any]


def facts(reader: Reader, run: int) -> dict[str, Any]:
    """Return the facts of one run. A run that is going on has fewer."""
    row = dict(reader.rows(RUNS, (run,))[0])
    about = json.loads(reader.rows("SELECT description FROM run WHERE id = ?", (run,))[0][0])
    events = [
        {**json.loads(one["data"]), "kind": one["kind"], "step": one["step"], "component": one["component"]}
        for one in reader.rows("SELECT * FROM event WHERE run = ? ORDER BY id", (run,))
    ]
    known = candidates_of(reader, run)
    chosen = chosen_of(known)
    total = costs_of(reader, run, ())[0]
    spent = _spent(reader, run)
    scores = [one["score"] for one in known if one["score"] is not None]
    heldout = _heldout(row, events)
    return {
        "run": row,
        "about": {name: about.get(name, {}) for name in ("models", "sizes", "versions")},
        "per_point": row["per_point"],
        "evaluator": row["evaluator"],
        "audit": audit_of(reader, run),
        "seconds": row["finished"] - row["created"] if row["finished"] else None,
        "dollars": dollars(total["dollars"], total["unpriced"]),
        "failures": [f"{one}: {one.error}" for one in failure_counts(outcomes(reader, run))],
        "warnings": list(dict.fromkeys(one["text"] for one in events if one["kind"] == "warning")),
        "percent": all(0 <= one <= 1 for one in (*scores, row["heldout_before"] or 0, row["heldout_after"] or 0)),
        "seed_score": row["seed_score"],
        "best_score": row["best_score"] if row["best_score"] is not None else max(scores, default=None),
        "heldout": heldout,
        "flips": _flips(reader, run, known[0]["candidate"], chosen["candidate"]) if heldout and chosen else {},
        "chosen": chosen,
        "learned": learned(chosen, known) if chosen else [],
        "suspicious": suspicious_in(reader, run, chosen["candidate"]) if chosen else [],
        "diffs": diffs(known[0]["texts"], chosen["texts"]) if chosen else {},
        "parts": len(chosen["texts"]) if chosen else 0,
        "candidates": _candidates(reader, run, known, row["created"]),
        "validated": len(scores),
        "scans": [_scan(one) for one in sorted(events, key=lambda one: one["step"]) if one["kind"] == "scan"],
        "shortened": [one for one in events if one["kind"] == "shortened"],
        "spent": spent,
        "updates_with_cost": len({one["when"] for one in spent}),
        "costs": costs_of(reader, run, ("role", "model")),
        "canary": _canary(reader, run, events) if "serving" in about else {},
        **_batches(events, about),
        **_rollouts(reader, run),
    }


def _heldout(row: _Row, events: Sequence[_Row]) -> dict[str, Any]:
    if not row["heldout_n"]:
        return {}
    readings = [one["difference"] for one in events if one["kind"] == "receipt" and one.get("difference")]
    figures = {name: row[f"heldout_{name}"] for name in ("before", "after", "difference", "low", "high", "n")}
    return {**figures, "confidence": readings[0].get("confidence") if readings else None}


def _canary(reader: Reader, run: int, events: Sequence[_Row]) -> dict[str, Any]:
    """Return what one server has seen of each version, and what became of its shadows."""
    sql = (
        "SELECT candidate || ' ' || purpose AS version, count(*) AS requests, count(error) AS errors,"
        " avg(ended - started) AS seconds, avg(score) AS score FROM effect WHERE run = ? AND kind = 'rollout'"
        " GROUP BY 1 ORDER BY 1"
    )
    pairs = [one["after"] - one["before"] for one in events if one["kind"] == "pair"]
    shadows = next((one for one in reversed(events) if one["kind"] == "shadows"), {})
    return {
        "versions": [dict(row) for row in reader.rows(sql, (run,))],
        "pairs": len(pairs),
        "difference": sum(pairs) / len(pairs) if pairs else None,
        "shadows": {name: one for name, one in shadows.items() if name not in ("kind", "step", "component")},
    }


def _flips(reader: Reader, run: int, before: str, after: str) -> dict[str, Any]:
    sql = (
        "SELECT example, avg(CASE WHEN candidate = ? THEN score END), avg(CASE WHEN candidate = ? THEN score END)"
        " FROM effect WHERE run = ? AND kind = 'rollout' AND purpose = 'heldout' GROUP BY 1"
    )
    pairs = [(old, new) for _, old, new in reader.rows(sql, (before, after, run)) if None not in (old, new)]
    top = max((new for pair in pairs for new in pair), default=1.0)
    kinds = ["fix" if new > old else "broke" if new < old else "ok" if new >= top else "" for old, new in pairs]
    order = ("fix", "ok", "broke", "")
    return {"fix": kinds.count("fix"), "broke": kinds.count("broke"), "squares": sorted(kinds, key=order.index)}


def _candidates(reader: Reader, run: int, known: Sequence[_Row], created: float) -> list[dict[str, Any]]:
    """Return the candidates with what had been spent when each was validated."""
    sql = (
        "SELECT e.ended, e.kind = 'rollout' AND e.purpose <> 'heldout', (SELECT coalesce(sum(u.prompt_tokens +"
        " u.completion_tokens), 0) FROM usage u WHERE u.effect = e.id) FROM effect e WHERE e.run = ? ORDER BY e.ended"
    )
    ended, bought, tokens = zip(*((0.0, 0, 0), *reader.rows(sql, (run,))), strict=True)
    rollouts, spent = list(itertools.accumulate(bought)), list(itertools.accumulate(tokens))
    found = []
    for one in known:
        axes = {}
        if (at := one["validated_at"]) is not None:
            place = bisect.bisect_right(ended, at) - 1
            axes = {"rollouts": rollouts[place], "tokens": spent[place], "seconds": at - created}
        kept = {name: one[name] for name in ("index", "step", "operator", "score")}
        shown = {"id": one["candidate"][:8], "parents": [parent[:8] for parent in one["parents"]], "fate": _fate(one)}
        found.append({**kept, **axes, **shown, "chosen": bool(one["selected"])})
    return found


def _fate(one: _Row) -> str:
    screened = one["screened"]
    if one["selected"]:
        return f"chosen: {one['selected']}"
    if screened and not screened["accepted"]:
        return f"refused: {screened['reason']}"
    return "" if one["score"] is not None else "not validated"


def _scan(event: _Row) -> dict[str, Any]:
    """Return a scan with one cell for each reflection that a call read: kept, lost there, or lost elsewhere."""
    fates = {one["index"]: one for one in event["retained"]}
    last = max((one["level"] for one in event["nodes"]), default=1)
    alone = sum(one["level"] == last for one in event["nodes"]) == 1
    nodes = []
    for one in sorted(event["nodes"], key=lambda node: (node["level"], node["node"])):
        place, top = [one["level"], one["node"]], one["level"] == last > 1
        cells = [(index, _state(fates[index], place, top)) for index in one["sources"] if index in fates]
        name = "result" if top and alone else f"{one['level']}.{one['node'] + 1}"
        nodes.append({"name": name, "cells": cells, "lessons": one["lessons"]})
    states = [_state(fate, None, top=False) for fate in fates.values()]
    return {
        **{name: event[name] for name in ("step", "component", "aggregator", "n")},
        "nodes": nodes,
        "failed": sum(one["failed"] is not None for one in event["nodes"]),
        "lessons": [one["text"] for one in event["lessons"]],
        "kept": states.count(_KEPT),
        "lost": states.count(_LOST_ON_THE_WAY),
        "unmeasured": states.count(_UNMEASURED),
    }


def _state(fate: _Row, place: list[int] | None, top: bool) -> int:
    if fate["covered"]:
        return _KEPT
    if not fate["measurable"]:
        return _UNMEASURED
    if place is not None and fate["lost_at"] == place:
        return _LOST_HERE
    return _NOT_IN_RESULT if top else _LOST_ON_THE_WAY


def _spent(reader: Reader, run: int) -> list[dict[str, Any]]:
    """Return tokens by role and update, the held-out set apart."""
    sql = (
        "SELECT CASE WHEN e.purpose = 'heldout' THEN 'held-out' WHEN e.step < 0 THEN 'before' ELSE '' || e.step END"
        ' AS "when", u.role, sum(u.prompt_tokens + u.completion_tokens) AS tokens, sum(u.calls) AS calls'
        " FROM usage u JOIN effect e ON e.id = u.effect WHERE e.run = ? GROUP BY 1, 2"
        " ORDER BY e.purpose = 'heldout', e.step, 2"
    )
    return [dict(row) for row in reader.rows(sql, (run,))]


def _batches(events: Sequence[_Row], about: _Row) -> dict[str, Any]:
    """Return the sizes, the seconds that an epoch would take at each as its update measured, and the last law."""
    sizes = [one for one in events if one["kind"] == "batch"]
    ran = [one for one in events if one["kind"] == "update" and one["rows"] and not one.get("skipped")]
    rows = about.get("sizes", {}).get("train", 0)
    return {
        "batches": [{name: one[name] for name in ("step", "size", "reason", "clamps")} for one in sizes],
        "delays": [{"size": one["rows"], "seconds": one["seconds"] * rows / one["rows"]} for one in ran],
        "law": next((one["fit"] for one in reversed(sizes) if one["fit"] is not None), None),
    }


def _rollouts(reader: Reader, run: int) -> dict[str, Any]:
    # Of the search, as everywhere: those of the held-out set are shown above.
    own = "kind = 'rollout' AND purpose <> 'heldout'"
    count = reader.rows(f"SELECT count(*) FROM effect WHERE run = ? AND {own}", (run,))[0][0]  # noqa: S608 - a constant
    rolls = [
        {
            **{name: row[name] for name in ("id", "step", "purpose", "score", "tokens", "seconds")},
            **{name: cut(_flat(row[name]), _MOST_CHARACTERS) for name in ("inputs", "prediction", "feedback", "error")},
            "candidate": row["candidate"][:8],
        }
        for row in reader.rows(
            f"{ROLLOUT} AND e.run = ? AND e.purpose <> 'heldout' ORDER BY e.id DESC LIMIT ?", (run, _MOST_ROLLOUTS)
        )
    ]
    return {"rolls": rolls[::-1], "all_rolls": count}


def _flat(text: str | None) -> str:
    """Return the values of an object of fields, one field a line; any other text as it is."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return text or ""
    return "\n".join(f"{name}: {value}" for name, value in found.items()) if isinstance(found, dict) else str(text)
