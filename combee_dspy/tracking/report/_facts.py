"""What the page says of a run, gathered from its journal as JSON values."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.journal import Reader
from combee_dspy.lessons import Book, lesson_id, read_section
from combee_dspy.tracking._learned import diffs, gain, learned
from combee_dspy.tracking._lessons import books_of, count_lessons, ordered, tests_of
from combee_dspy.tracking._metrics import heldout_gain, title
from combee_dspy.tracking._queries import (
    audit_of,
    candidates_of,
    chosen_of,
    costs_of,
    problems_of,
    suspicious_in,
)
from combee_dspy.tracking._spending import bought_by, spending_of
from combee_dspy.tracking._sql import ROLLOUT, RUNS
from combee_dspy.tracking._text import cut, dollars

__all__ = ["facts"]

_MOST_CHARACTERS, _MOST_BEHIND, _MOST_QUOTED = 600, 5, 160
_KEPT, _LOST_HERE, _LOST_ON_THE_WAY, _NOT_IN_RESULT, _UNMEASURED = range(5)
_ROLLOUT_COLUMNS = (
    "id",
    "step",
    "purpose",
    "candidate",
    "example",
    "score",
    "tokens",
    "started",
    "seconds",
)
_TEXTS = ("inputs", "prediction", "feedback", "error")
# What an effect was for, the same in every chart; where usage is summed, by whom it was.
_WHAT = """CASE WHEN {0} <> 'task' THEN {0} WHEN e.purpose = 'heldout' THEN 'task: held-out'
  WHEN e.purpose = 'train' THEN 'task: learning' ELSE 'task: checking' END"""
_Row = Mapping[str, Any]


def facts(reader: Reader, run: int) -> dict[str, Any]:
    """Return the facts of one run. A run that is going on has fewer."""
    row = dict(reader.rows(RUNS, (run,))[0])
    described = reader.rows("SELECT name, description FROM run WHERE id = ?", (run,))[0]
    about = json.loads(described["description"])
    events = [
        {
            **json.loads(one["data"]),
            **{name: one[name] for name in ("id", "kind", "step", "component")},
        }
        for one in reader.rows("SELECT * FROM event WHERE run = ? ORDER BY id", (run,))
    ]
    known = candidates_of(reader, run)
    chosen = chosen_of(known)
    total = costs_of(reader, run, ())[0]
    spent = _spent(reader, run)
    scores = [one["score"] for one in known if one["score"] is not None]
    heldout = _heldout(row, events)
    rolls = _rollouts(reader, run, row["created"])
    scans = [one for one in events if one["kind"] == "scan"]
    return {
        "run": row,
        "title": title(dict(described)),
        "about": {name: about.get(name, {}) for name in ("models", "sizes", "versions")},
        "per_point": row["per_point"],
        "evaluator": row["evaluator"],
        "audit": audit_of(reader, run),
        "seconds": row["finished"] - row["created"] if row["finished"] else None,
        "dollars": dollars(total["known_dollars"], total["unpriced"]),
        **problems_of(reader, run),
        "percent": all(
            0 <= one <= 1
            for one in (*scores, row["heldout_before"] or 0, row["heldout_after"] or 0)
        ),
        "seed_score": row["seed_score"],
        "best_score": (
            row["best_score"] if row["best_score"] is not None else max(scores, default=None)
        ),
        "heldout": heldout,
        "flips": (
            _flips(reader, run, known[0]["candidate"], chosen["candidate"])
            if heldout and chosen
            else {}
        ),
        "chosen": chosen,
        "learned": (
            _with_reasons(learned(chosen, known), scans, events, _told(reader, run))
            if chosen
            else []
        ),
        "suspicious": suspicious_in(reader, run, chosen["candidate"]) if chosen else [],
        "diffs": diffs(known[0]["texts"], chosen["texts"]) if chosen else {},
        "candidates": _candidates(reader, run, known, row["created"]),
        "operators": _operators(known, events),
        "validated": len(scores),
        "scans": [_scan(one) for one in sorted(scans, key=lambda one: one["step"])],
        "lessons": _lessons(reader, run, chosen.get("texts", {})),
        "spent": spent,
        "updates_with_cost": len({one["when"] for one in spent}),
        "costs": costs_of(reader, run, ("role", "model")),
        "spending": spending_of(reader, run),
        "canary": _canary(reader, run, events) if "serving" in about else {},
        **_batches(events, about),
        "rolls": rolls,
        "work": _work(reader, run, row["created"]),
        "commits": [
            one["started"] + one["seconds"] - row["created"]
            for one in events
            if one["kind"] == "update"
        ],
    }


def _lessons(reader: Reader, run: int, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the lessons of the books as they stand, those that are served first, and how they
    relate.

    The text that is returned may be an earlier one, or the student's, and lack what the book serves
    by now.
    """
    books, tests = books_of(reader, run), tests_of(reader, run)
    held = {
        name: {
            lesson.id
            for line in read_section(texts.get(name, ""))[1]
            if (lesson := book.find(lesson_id(line)))
        }
        for name, book in books.items()
    }
    rows = [
        {
            **{name: getattr(lesson, name) for name in ("text", "state", "born", "reason")},
            "component": component,
            "in_text": lesson.id in held[component],
            "examples": len(lesson.sources),
            "rule": _named(book, lesson.rule),
            "rivals": [_named(book, rival) for rival in lesson.rivals],
            "tests": [
                str(test)
                for test in (*tests.get((component, lesson.id), ()), lesson.effect)
                if test
            ],
        }
        for component, book in books.items()
        for lesson in ordered(book)
    ]
    counts = count_lessons(reader, run)
    shown = {name.removeprefix("lessons/"): round(count) for name, count in counts.items()}
    return {"counts": shown, "components": len(books), "rows": rows}


def _named(book: Book, lesson: str) -> dict[str, str]:
    """Return a lesson's wording and state; empty where the book does not hold it."""
    held = book.find(lesson)
    return {"text": cut(held.text, _MOST_QUOTED), "state": held.state} if held else {}


def _heldout(row: _Row, events: Sequence[_Row]) -> dict[str, Any]:
    if not row["heldout_n"]:
        return {}
    readings = [
        one["difference"] for one in events if one["kind"] == "receipt" and one.get("difference")
    ]
    figures = {
        name: row[f"heldout_{name}"]
        for name in ("before", "after", "difference", "low", "high", "n")
    }
    # Journals of before looks were counted hold the first look alone.
    looks = [{"look": 1, **event} for event in events if event["kind"] == "heldout"]
    name = heldout_gain(row)
    return {
        **figures,
        "gain": name,
        "confidence": readings[-1].get("confidence") if readings else None,
        "looks": looks,
    }


def _canary(reader: Reader, run: int, events: Sequence[_Row]) -> dict[str, Any]:
    """Return what one server has seen of each version, and what became of its shadows."""
    sql = (
        "SELECT candidate || ' ' || purpose AS version, count(*) AS requests, count(error) AS"
        " errors, avg(ended - started) AS seconds, avg(score) AS score FROM effect WHERE run = ?"
        " AND kind = 'rollout' GROUP BY 1 ORDER BY 1"
    )
    pairs = [one["after"] - one["before"] for one in events if one["kind"] == "pair"]
    shadows = next((one for one in reversed(events) if one["kind"] == "shadows"), {})
    return {
        "versions": [dict(row) for row in reader.rows(sql, (run,))],
        "pairs": len(pairs),
        "difference": sum(pairs) / len(pairs) if pairs else None,
        "shadows": {
            name: one for name, one in shadows.items() if name not in ("kind", "step", "component")
        },
    }


def _flips(reader: Reader, run: int, before: str, after: str) -> dict[str, Any]:
    """Return what became of each held-out question: its scores, and the effects to look at; not
    what it says.
    """
    sql = (
        "SELECT avg(CASE WHEN candidate = ?1 THEN score END) AS old, avg(CASE WHEN candidate = ?2"
        " THEN score END) AS new, min(CASE WHEN candidate = ?1 THEN id END) AS was, min(CASE WHEN"
        " candidate = ?2 THEN id END) AS became FROM effect WHERE run = ?3 AND kind = 'rollout' AND"
        " purpose = 'heldout' GROUP BY example"
    )
    pairs = [
        dict(row)
        for row in reader.rows(sql, (before, after, run))
        if None not in (row["old"], row["new"])
    ]
    top = max((one["new"] for one in pairs), default=1.0)
    for one in pairs:
        old, new = one["old"], one["new"]
        one["kind"] = (
            "fixed" if new > old else "broken" if new < old else "right" if new >= top else "wrong"
        )
    order = ("fixed", "right", "broken", "wrong")
    counts = {kind: sum(one["kind"] == kind for one in pairs) for kind in order}
    return {**counts, "squares": sorted(pairs, key=lambda one: order.index(one["kind"]))}


def _told(reader: Reader, run: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rollouts that reflections are about, by candidate and example, and by example
    alone.
    """
    sql = (
        f"{ROLLOUT} AND e.run = ? AND e.split <> 'heldout' ORDER BY e.purpose = 'train', e.id DESC"
    )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in reader.rows(sql, (run,)):
        one = {
            "id": row["id"],
            "inputs": cut(_flat(row["inputs"]), 300),
            "feedback": cut(_flat(row["feedback"]), 300),
        }
        found[row["candidate"], row["example"]] = found["", row["example"]] = one
    return found


def _with_reasons(
    lines: list[dict[str, Any]],
    scans: Sequence[_Row],
    events: Sequence[_Row],
    told: Mapping[tuple[str, str], Any],
) -> list[dict[str, Any]]:
    """Add to each line the reflections that the lesson in it covers, as the rollouts that they are
    about.
    """
    parents = {one["step"]: one["parent"] for one in events if one["kind"] == "update"}
    for line in lines:
        behind = []
        for scan in scans:
            if scan["step"] != line["step"] or scan["component"] != line["part"].split("::")[0]:
                continue
            said = {number: one["text"].strip() for number, one in enumerate(scan["lessons"])}
            within = {number for number, text in said.items() if text and text in line["text"]}
            for one in scan["retained"]:
                if one.get("lesson") in within:
                    example, parent = one["example"], parents.get(scan["step"], "")
                    behind.append(told.get((parent, example)) or told.get(("", example)))
        line["behind"] = [one for one in behind[:_MOST_BEHIND] if one]
        line["reflections"] = len(behind)
    return lines


def _operators(known: Sequence[_Row], events: Sequence[_Row]) -> list[dict[str, Any]]:
    """Return what came of each operator's children: refused, screened out, validated, and what each
    gained.
    """
    scores = {one["candidate"]: one["score"] for one in known}
    refused = [one["operator"] for one in events if one["kind"] == "refused"]
    names = dict.fromkeys([*(one["operator"] for one in known if one["parents"]), *refused])
    found = []
    for name in names:
        own = [one for one in known if one["operator"] == name and one["parents"]]
        gains = [value for one in own if (value := gain(one, scores)) is not None]
        out = sum(bool(one["screened"]) and not one["screened"]["accepted"] for one in own)
        mean = statistics.fmean(gains) if gains else None
        kept = {
            "operator": name,
            "refused": refused.count(name),
            "children": len(own),
            "screened_out": out,
        }
        found.append({**kept, "gains": gains, "mean": mean, "best": max(gains, default=None)})
    return found


def _candidates(
    reader: Reader, run: int, known: Sequence[_Row], created: float
) -> list[dict[str, Any]]:
    """Return the candidates with what had been spent when each was validated."""
    paid, found = bought_by(reader, run), []
    by_id = {one["candidate"]: one for one in known}
    for one in known:
        axes = {}
        if (at := one["validated_at"]) is not None:
            axes = {
                **{name: paid(at)[name] for name in ("rollouts", "tokens")},
                "seconds": at - created,
            }
        kept = {name: one[name] for name in ("index", "step", "operator", "score")}
        shown = {
            "id": one["candidate"][:8],
            "parents": [parent[:8] for parent in _validated(one, by_id)],
            "fate": _fate(one),
        }
        found.append({**kept, **axes, **shown, "chosen": bool(one["selected"])})
    return found


def _validated(one: _Row, known: Mapping[str, _Row]) -> list[str]:
    """Return the nearest ancestors that have a score: a trunk does not validate every text."""
    parents = [known[name] for name in one["parents"] if name in known]
    found = [
        [two["candidate"]] if two["score"] is not None else _validated(two, known)
        for two in parents
    ]
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _fate(one: _Row) -> str:
    screened = one["screened"]
    if one["selected"]:
        return f"chosen: {one['selected']}"
    if screened and not screened["accepted"]:
        return f"refused: {screened['reason']}"
    return "" if one["score"] is not None else "not validated"


def _scan(event: _Row) -> dict[str, Any]:
    """Return a scan with one cell for each reflection that a call read: kept, lost there, or lost
    elsewhere.
    """
    fates = {one["index"]: one for one in event["retained"]}
    last = max((one["level"] for one in event["nodes"]), default=1)
    alone = sum(one["level"] == last for one in event["nodes"]) == 1
    nodes = []
    for one in sorted(event["nodes"], key=lambda node: (node["level"], node["node"])):
        place, top = [one["level"], one["node"]], one["level"] == last > 1
        cells = [
            (index, _state(fates[index], place, top)) for index in one["sources"] if index in fates
        ]
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
    """Return what LM calls took by role and update, the held-out set apart."""
    sql = (
        "SELECT CASE WHEN e.purpose = 'heldout' THEN 'held-out'"  # noqa: S608 - constants
        " WHEN e.step < 0 THEN 'before' ELSE '' || e.step END"
        f' AS "when", {_WHAT.format("u.role")} AS what, sum(u.prompt_tokens + u.completion_tokens)'
        " AS tokens, sum(u.calls) AS calls, total(u.seconds) AS seconds"
        " FROM usage u JOIN effect e ON e.id = u.effect WHERE e.run = ? GROUP BY 1, 2"
        " ORDER BY e.purpose = 'heldout', e.step, 2"
    )
    return [dict(row) for row in reader.rows(sql, (run,))]


def _batches(events: Sequence[_Row], about: _Row) -> dict[str, Any]:
    """Return the sizes, the last law, and the seconds an epoch took at each size as the law was
    fitted to them.

    A size counts with the median of its updates. A law knows what was committed before it was
    fitted.
    """
    sizes = [one for one in events if one["kind"] == "batch"]
    last = next((one for one in reversed(sizes) if one["fit"] is not None), None)
    ran = [
        one for one in events if one["kind"] == "update" and one["rows"] and not one.get("skipped")
    ]
    rows = about.get("sizes", {}).get("train", 0)
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for one in ran:
        if last is None or one["id"] < last["id"]:
            seconds[one["rows"]].append(one["seconds"])
    return {
        "batches": [
            {name: one[name] for name in ("step", "size", "reason", "clamps")} for one in sizes
        ],
        "delays": [
            {"size": size, "seconds": statistics.median(found) * rows / size}
            for size, found in sorted(seconds.items())
        ],
        "law": None if last is None else {"floor": 0.0, **last["fit"]},
    }


def _rollouts(reader: Reader, run: int, created: float) -> dict[str, Any]:
    """Return all rollouts of the search as a table whose texts, many of them the same, stand apart,
    once each.

    Those of the held-out set are shown above, without texts.
    """
    texts: dict[str, int] = {}
    rows = []
    for row in reader.rows(
        f"{ROLLOUT} AND e.run = ? AND e.purpose <> 'heldout' ORDER BY e.id", (run,)
    ):
        shown = {name: cut(_flat(row[name]), _MOST_CHARACTERS) for name in _TEXTS}
        shown |= {
            "purpose": row["purpose"],
            "candidate": row["candidate"][:8],
            "example": row["example"][:12],
        }
        times = {"started": round(row["started"] - created, 4), "seconds": round(row["seconds"], 4)}
        one = {
            **dict(row),
            **times,
            **{name: texts.setdefault(text, len(texts)) for name, text in shown.items()},
        }
        rows.append([one[name] for name in (*_ROLLOUT_COLUMNS, *_TEXTS)])
    return {"columns": [*_ROLLOUT_COLUMNS, *_TEXTS], "rows": rows, "texts": list(texts)}


def _work(reader: Reader, run: int, created: float) -> dict[str, list[list[Any]]]:
    """Return when each effect that took time began, and its seconds, by what it was for."""
    sql = (
        f"SELECT {_WHAT.format('coalesce(e.role, e.kind)')} AS what, e.started - ? AS began,"  # noqa: S608 - constants
        " e.ended - e.started AS seconds, e.step"
        " FROM effect e WHERE e.run = ? AND e.started > 0 AND e.ended > e.started ORDER BY"
        " e.started, e.id"
    )
    found: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for row in reader.rows(sql, (created, run)):
        found[row["what"]].append([round(row["began"], 4), round(row["seconds"], 4), row["step"]])
    return found


def _flat(text: str | None) -> str:
    """Return the values of an object of fields, one field a line; any other text as it is."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return text or ""
    return (
        "\n".join(f"{name}: {value}" for name, value in found.items())
        if isinstance(found, dict)
        else str(text)
    )
