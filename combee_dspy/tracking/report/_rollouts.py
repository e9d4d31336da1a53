"""Rollouts for the page, no more of them than a page can hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._sql import ROLLOUT
from combee_dspy.tracking._text import cut

_MOST_IN_TABLE, _MOST_IN_QUOTE, _MOST_IN_FULL = 600, 300, 4_000  # characters
_MOST_ROLLOUTS, _MOST_ANSWERS = 5_000, 300
_BEST_FIRST = ("fixed", "right", "broken", "wrong")
_WORST_FIRST = ("broken", "wrong", "fixed", "right")
_TEXTS = ("inputs", "expected", "prediction", "feedback", "error")
_COLUMNS = ("id", "step", "purpose", "candidate", "score", "tokens", "seconds", *_TEXTS)
# Quicker than ROLLOUT, which sums what each rollout cost.
_WITH_TEXTS = """SELECT id, error, json_extract(value, '$.inputs') AS inputs,
    json_extract(value, '$.expected') AS expected,
    json_extract(value, '$.prediction') AS prediction, json_extract(value, '$.feedback') AS feedback
FROM main.effect WHERE id IN (SELECT value FROM json_each(?))"""
# A rollout has the purpose that it was bought for first: what validates may have trained.
_SCORES = """SELECT candidate, example, avg(score), min(id) FROM effect
WHERE +run = ?1 AND kind = 'rollout' AND (purpose = 'heldout') = (?2 = 'heldout')
  AND candidate IN (SELECT value FROM json_each(?3))
  AND example IN (SELECT example FROM effect WHERE +run = ?1 AND purpose = ?2)
GROUP BY candidate, example HAVING avg(score) IS NOT NULL"""
_FIRSTS = """SELECT candidate, example, min(id) FROM effect
WHERE +run = ? AND split <> 'heldout' AND kind IN ('rollout', 'recorded')
  AND example IN (SELECT value FROM json_each(?))
GROUP BY candidate, example, purpose <> 'train' ORDER BY purpose <> 'train', min(id)"""

Place = tuple[str, str]
"""A candidate and the hash of an example."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One question before and after: mean scores, and the first rollout of each.

    ``kind`` is ``"fixed"`` (it scores more), ``"broken"`` (it scores less), ``"right"`` or
    ``"wrong"`` (as before, with the highest score of all questions or without).
    """

    old: float | None
    new: float
    was: int | None
    became: int
    kind: str


def _pairs_of(history: RunHistory, purpose: str, before: str, after: Sequence[str]) -> list[Pair]:
    """Return the questions that a candidate answered, with what another one scored there.

    Args:
        history: Of the run.
        purpose: Whose questions.
        before: The other one.
        after: The candidate, and those whose rollouts stand for its own where it has none.
    """
    names = json.dumps([before, *after])
    rows = history.reader.rows(_SCORES, (history.run, purpose, names))
    means = {(candidate, example): mean for candidate, example, *mean in rows}
    scored = []
    for example in sorted({example for _, example in means}):
        own = [means[name, example] for name in after if (name, example) in means]
        if own:
            scored.append((*means.get((before, example), (None, None)), *own[0]))
    top = max((new for _, _, new, _ in scored), default=1.0)
    return [
        Pair(old, new, was, became, _kind_of(old, new, top)) for old, was, new, became in scored
    ]


def _kind_of(old: float | None, new: float, top: float) -> str:
    if old is None or old == new:
        return "right" if new >= top else "wrong"
    return "fixed" if new > old else "broken"


def flips_of(
    history: RunHistory, purpose: str, before: str, after: Sequence[str]
) -> dict[str, Any]:
    """Return what became of each question of a purpose, and how many of each kind there are.

    Scores and numbers of effects alone: who has read a question can no longer hold it out.
    """
    pairs = _pairs_of(history, purpose, before, after)
    both = [pair for pair in pairs if pair.old is not None]
    counts = {kind: sum(pair.kind == kind for pair in both) for kind in _BEST_FIRST}
    return {**counts, "squares": sorted(both, key=lambda pair: _BEST_FIRST.index(pair.kind))}


def answers_of(history: RunHistory, before: str, after: Sequence[str]) -> list[dict[str, Any]]:
    """Return the validation rows of a candidate with its answers, in full.

    Those that it gets wrong come first, and of these those that the other candidate had right.
    """
    pairs = _pairs_of(history, "validation", before, after)
    pairs = sorted(pairs, key=lambda pair: _WORST_FIRST.index(pair.kind))[:_MOST_ANSWERS]
    texts = _texts_of(history.reader, [pair.became for pair in pairs], _MOST_IN_FULL)
    return [
        {"old": pair.old, "new": pair.new, "kind": pair.kind, **texts[pair.became]}
        for pair in pairs
    ]


def rollouts_behind(history: RunHistory, places: Collection[Place]) -> dict[Place, dict[str, Any]]:
    """Return the rollouts that reflections are about, by candidate and example.

    Each is the first of its candidate, for learning before any other; of another candidate where
    its own has none.
    """
    examples = json.dumps(sorted({example for _, example in places}))
    firsts: dict[Place, int] = {}
    for candidate, example, number in history.reader.rows(_FIRSTS, (history.run, examples)):
        firsts.setdefault((candidate, example), number)
        firsts.setdefault(("", example), number)
    numbers = {place: firsts.get(place) or firsts.get(("", place[1]), 0) for place in places}
    texts = _texts_of(history.reader, list(numbers.values()), _MOST_IN_QUOTE)
    return {place: texts[number] for place, number in numbers.items() if number in texts}


def table_of_rollouts(history: RunHistory) -> dict[str, Any]:
    """Return the newest rollouts of the search as a table, and how many there are in all.

    The texts, many of them the same, are in a list of their own, once each. The held-out set is
    shown elsewhere, without texts.
    """
    newest = (
        f"{ROLLOUT} AND +e.run = ? AND e.purpose <> 'heldout' ORDER BY e.id DESC"
        f" LIMIT {_MOST_ROLLOUTS}"
    )
    texts: dict[str, int] = {}
    rows = []
    for row in history.reader.stream(newest, (history.run,)):
        cells = {name: row[name] for name in _COLUMNS}
        cells |= {"seconds": round(row["seconds"], 4), "candidate": row["candidate"][:8]}
        cells |= {name: cut(_flat(row[name]), _MOST_IN_TABLE) for name in _TEXTS}
        rows.append(
            [
                texts.setdefault(cell, len(texts)) if isinstance(cell, str) else cell
                for cell in cells.values()
            ]
        )
    return {"columns": _COLUMNS, "rows": rows[::-1], "texts": list(texts)}


def _texts_of(reader: Reader, numbers: Collection[int], most: int) -> dict[int, dict[str, Any]]:
    """Return the texts of rollouts by number, each of at most so many characters."""
    rows = reader.rows(_WITH_TEXTS, (json.dumps(numbers),))
    return {
        row["id"]: {"id": row["id"], **{name: cut(_flat(row[name]), most) for name in _TEXTS}}
        for row in rows
    }


def _flat(text: str | None) -> str:
    """Return the values of an object of fields, one field a line; any other text as it is."""
    try:
        fields = json.loads(text or "")
    except (ValueError, RecursionError):
        return text or ""
    if not isinstance(fields, dict):
        return str(text)
    return "\n".join(f"{name}: {value}" for name, value in fields.items())
