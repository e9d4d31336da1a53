"""Effects for the page, no more of them than a page can hold."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from combee_dspy.journal import Reader
from combee_dspy.tracking._sql import ROLLOUT
from combee_dspy.tracking._text import cut

__all__ = [
    "WHAT",
    "Place",
    "count_work",
    "flips_of",
    "rollouts_behind",
    "table_of_rollouts",
    "work_of",
]

_MOST_CHARACTERS, _MOST_QUOTED = 600, 300
_MOST_ROLLOUTS, _MOST_SPANS = 5_000, 20_000
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
_TEXTS = ("inputs", "prediction", "feedback", "error")
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
        old, new = pair["old"], pair["new"]
        pair["kind"] = (
            "fixed" if new > old else "broken" if new < old else "right" if new >= top else "wrong"
        )
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
    examples = {example for _, example in places}
    firsts: dict[Place, int] = {}
    sql = (
        "SELECT candidate, example, id FROM effect WHERE run = ? AND split <> 'heldout'"
        " AND kind IN ('rollout', 'recorded') ORDER BY purpose <> 'train', id"
    )
    for candidate, example, number in reader.stream(sql, (run,)):
        if example in examples:
            firsts.setdefault((candidate, example), number)
            firsts.setdefault(("", example), number)
    rollouts = {}
    for place in places:
        number = firsts.get(place) or firsts.get(("", place[1]))
        for row in reader.rows(f"{ROLLOUT} AND e.id = ?", (number,)):
            texts = {name: cut(_flat(row[name]), _MOST_QUOTED) for name in ("inputs", "feedback")}
            rollouts[place] = {"id": row["id"], **texts}
    return rollouts


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
        " FROM effect e WHERE e.run = ? AND e.started > 0 AND e.ended > e.started ORDER BY"
        f" e.started, e.id LIMIT {_MOST_SPANS}"
    )
    spans: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for row in reader.stream(sql, (created, run)):
        spans[row["what"]].append([round(row["began"], 4), round(row["seconds"], 4), row["step"]])
    return spans


def count_work(reader: Reader, run: int) -> int:
    """Return how many effects took time."""
    sql = "SELECT count(*) FROM effect WHERE run = ? AND started > 0 AND ended > started"
    return int(reader.rows(sql, (run,))[0][0])


def _flat(text: str | None) -> str:
    """Return the values of an object of fields, one field a line; any other text as it is."""
    try:
        fields = json.loads(text or "")
    except (ValueError, RecursionError):
        return text or ""
    if not isinstance(fields, dict):
        return str(text)
    return "\n".join(f"{name}: {value}" for name, value in fields.items())
