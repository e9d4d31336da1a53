"""Effects for the page, no more of them than a page can hold."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from combee_dspy.journal import Reader
from combee_dspy.tracking._sql import ROLLOUT
from combee_dspy.tracking._text import cut

__all__ = [
    "WHAT",
    "Place",
    "answers_of",
    "flips_of",
    "grid_of",
    "latency_of",
    "rollouts_behind",
    "table_of_rollouts",
    "work_of",
]

_MOST_CHARACTERS, _MOST_QUOTED = 600, 300
_MOST_ROLLOUTS, _MOST_SPANS = 5_000, 20_000
_MOST_IN_FULL, _MOST_ANSWERS = 4_000, 300
_WORST = ("broken", "wrong", "fixed", "right")
_COLUMNS = (
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
_TEXTS = ("inputs", "expected", "prediction", "feedback", "error")
# Quicker than ROLLOUT, which sums what each rollout cost.
_TOLD = (
    "SELECT e.id, e.example, e.error,"  # noqa: S608 - constants
    + ", ".join(f" json_extract(e.value, '$.{name}') AS {name}" for name in _TEXTS[:-1])
    + " FROM effect e"
)
# A metric's feedback on a predictor takes time, and no judge.
_TOOK_TIME = (
    "e.run = ? AND e.started > 0 AND e.ended > e.started AND (e.kind <> 'feedback'"
    " OR EXISTS (SELECT 1 FROM usage u WHERE u.effect = e.id))"
)
Place = tuple[str, str]
"""A candidate and the hash of an example."""

WHAT = """CASE WHEN {0} <> 'task' THEN {0} WHEN e.purpose = 'heldout' THEN 'task: held-out'
  WHEN e.purpose = 'train' THEN 'task: learning' ELSE 'task: checking' END"""
"""What an effect was for, the same in every chart; where usage is summed, by whom it was."""


def flips_of(reader: Reader, run: int, before: str, after: str) -> dict[str, Any]:
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
    top = max((pair["new"] for pair in pairs), default=1.0)
    for pair in pairs:
        pair["kind"] = _kind(pair["old"], pair["new"], top)
    order = ("fixed", "right", "broken", "wrong")
    counts = {kind: sum(pair["kind"] == kind for pair in pairs) for kind in order}
    return {**counts, "squares": sorted(pairs, key=lambda pair: order.index(pair["kind"]))}


def rollouts_behind(
    reader: Reader, run: int, places: Collection[Place]
) -> dict[Place, dict[str, Any]]:
    """Return the rollouts that reflections are about, by candidate and example.

    Each is the first of its candidate, for learning before any other; of another candidate where
    its own has none.
    """
    if not places:
        return {}
    examples = json.dumps(sorted({example for _, example in places}))
    firsts: dict[Place, int] = {}
    sql = (
        "SELECT candidate, example, purpose <> 'train' AS later, min(id) FROM effect WHERE run = ?"
        " AND split <> 'heldout' AND kind IN ('rollout', 'recorded')"
        " AND example IN (SELECT value FROM json_each(?)) GROUP BY 1, 2, 3 ORDER BY 3, 4"
    )
    for candidate, example, _, number in reader.rows(sql, (run, examples)):
        firsts.setdefault((candidate, example), number)
        firsts.setdefault(("", example), number)
    rollouts = {}
    for place in places:
        number = firsts.get(place) or firsts.get(("", place[1]))
        for row in reader.rows(f"{_TOLD} WHERE e.id = ?", (number,)):
            rollouts[place] = {"id": row["id"], **_texts_of(row, _MOST_QUOTED)}
    return rollouts


def answers_of(reader: Reader, run: int, before: str, after: str) -> list[dict[str, Any]]:
    """Return the validation rows of a candidate with its answers, in full: those that it gets wrong
    first, and of these those that the student had right.
    """
    sql = (
        f"{_TOLD.replace('SELECT', 'SELECT avg(e.score) AS new,')} WHERE e.run = ?1 AND"
        " e.kind = 'rollout' AND e.purpose = 'validation' AND e.candidate = ?2 GROUP BY e.example"
    )
    old = reader.rows(
        "SELECT example, avg(score) AS old FROM effect WHERE run = ? AND kind = 'rollout'"
        " AND purpose = 'validation' AND candidate = ? GROUP BY 1",
        (run, before),
    )
    scores = {row["example"]: row["old"] for row in old}
    rows = [dict(row) for row in reader.rows(sql, (run, after))]
    top = max((row["new"] for row in rows), default=1.0)
    answers = [
        {
            "id": row["id"],
            "old": scores.get(row["example"]),
            "new": row["new"],
            "kind": _kind(scores.get(row["example"], row["new"]), row["new"], top),
            "error": cut(row["error"] or "", _MOST_IN_FULL),
            **_texts_of(row, _MOST_IN_FULL),
        }
        for row in rows
    ]
    return sorted(answers, key=lambda row: _WORST.index(row["kind"]))[:_MOST_ANSWERS]


def grid_of(reader: Reader, run: int, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the mean score of some validated candidates on each validation row, the easiest row
    first; empty where all of them are right and wrong on the same rows.

    Args:
        reader: Of the journal. Borrowed.
        run: The run's number.
        names: What to call the candidates, by hash, in their order.
    """
    sql = (
        "SELECT candidate, example, avg(score) FROM effect WHERE run = ? AND kind = 'rollout'"
        " AND purpose IN ('validation', 'final') GROUP BY 1, 2"
    )
    rows: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for candidate, example, score in reader.stream(sql, (run,)):
        if candidate in names and score is not None:
            rows[example][candidate] = score
    if all(len(set(row.values())) < 2 for row in rows.values()):
        return {}
    easiest = sorted(rows.values(), key=lambda row: -statistics.fmean(row.values()))
    cells = [
        [question, names[candidate], round(score, 4)]
        for question, row in enumerate(easiest)
        for candidate, score in row.items()
    ]
    asked = {name for _, name, _ in cells}
    return {"names": [name for name in names.values() if name in asked], "cells": cells}


def table_of_rollouts(reader: Reader, run: int, created: float) -> dict[str, Any]:
    """Return the newest rollouts of the search as a table whose texts, many of them the same, stand
    apart, once each, and how many there are in all.

    Those of the held-out set are shown above, without texts.
    """
    of_search = "e.run = ? AND e.purpose <> 'heldout'"
    sql = f"SELECT count(*) FROM ({ROLLOUT} AND {of_search})"  # noqa: S608 - constants
    total = reader.rows(sql, (run,))[0][0]
    texts: dict[str, int] = {}
    rows = []
    # The plus keeps SQLite from an index that has all rollouts in another order.
    newest = f"{ROLLOUT} AND +{of_search} ORDER BY e.id DESC LIMIT {_MOST_ROLLOUTS}"
    for row in reader.stream(newest, (run,)):
        strings = {name: cut(_flat(row[name]), _MOST_CHARACTERS) for name in _TEXTS}
        strings |= {
            "purpose": row["purpose"],
            "candidate": row["candidate"][:8],
            "example": row["example"][:12],
        }
        cells = {
            **dict(row),
            "started": round(row["started"] - created, 4),
            "seconds": round(row["seconds"], 4),
            **{name: texts.setdefault(text, len(texts)) for name, text in strings.items()},
        }
        rows.append([cells[name] for name in (*_COLUMNS, *_TEXTS)])
    columns = [*_COLUMNS, *_TEXTS]
    return {"columns": columns, "rows": rows[::-1], "texts": list(texts), "total": total}


def work_of(reader: Reader, run: int, created: float) -> dict[str, list[list[Any]]]:
    """Return when each effect that took time began, and its seconds, by what it was for; the first
    of them where there are too many.
    """
    sql = (
        f"SELECT {WHAT.format('coalesce(e.role, e.kind)')} AS what, e.started - ? AS began,"  # noqa: S608 - constants
        " e.ended - e.started AS seconds, e.step"
        f" FROM effect e WHERE {_TOOK_TIME} ORDER BY"
        f" e.started, e.id LIMIT {_MOST_SPANS}"
    )
    spans: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for row in reader.stream(sql, (created, run)):
        spans[row["what"]].append([round(row["began"], 4), round(row["seconds"], 4), row["step"]])
    return spans


def latency_of(
    reader: Reader, run: int, updates: Sequence[float]
) -> tuple[int, list[dict[str, float | int | str]]]:
    """Return how many effects took time, and p50, p95 and p99 in seconds of rollouts, of reads
    (calls of reflectors and proposers) and of updates.
    """
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    sql = f"SELECT e.kind, e.ended - e.started FROM effect e WHERE {_TOOK_TIME}"  # noqa: S608 - constants
    for kind, took in reader.stream(sql, (run,)):
        kinds[kind].append(took)
    named = {"rollouts": kinds["rollout"], "reads": kinds["call"], "updates": updates}
    rows: list[dict[str, float | int | str]] = []
    for what, seconds in named.items():
        if len(seconds) > 1:
            cuts = statistics.quantiles(seconds, n=100, method="inclusive")
            quantiles = {f"p{share}": cuts[share - 1] for share in (50, 95, 99)}
            rows.append({"what": what, "n": len(seconds), **quantiles})
    return sum(map(len, kinds.values())), rows


def _kind(old: float, new: float, top: float) -> str:
    return "fixed" if new > old else "broken" if new < old else "right" if new >= top else "wrong"


def _texts_of(row: Any, most: int) -> dict[str, str]:
    return {name: cut(_flat(row[name]), most) for name in _TEXTS[:-1]}


def _flat(text: str | None) -> str:
    """Return the values of an object of fields, one field a line; any other text as it is."""
    try:
        fields = json.loads(text or "")
    except (ValueError, RecursionError):
        return text or ""
    if not isinstance(fields, dict):
        return str(text)
    return "\n".join(f"{name}: {value}" for name, value in fields.items())
