"""Which lessons of a memory a row is shown, for the page."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from combee_dspy.journal import RunHistory
from combee_dspy.memory import BM25, shelf_of

_CALLS = """SELECT id, json_extract(value, '$.calls') AS calls
FROM main.effect WHERE id IN (SELECT value FROM json_each(?))"""


def lessons_shown(
    history: RunHistory, texts: Mapping[str, str], rollouts: Collection[int]
) -> dict[int, list[str]]:
    """Return the lessons that texts show the calls of rollouts, by the rollouts' numbers.

    None where the artifact is no memory, or looks up by something else than words: a page asks no
    service, and runs nothing that a journal names.
    """
    match history.about.spec("artifact").get("params"):
        case {
            "retriever": {"$spec": {"name": BM25.name, "params": {"k1": float(k1), "b": float(b)}}},
            "budget_tokens": int(budget),
        }:
            retriever = BM25(k1=k1, b=b)
        case _:
            return {}
    by_rollout: dict[int, list[str]] = {}
    for number, calls in history.reader.rows(_CALLS, (json.dumps(list(rollouts)),)):
        lines: dict[str, None] = {}
        for call in json.loads(calls or "[]"):
            if call["predictor"] in texts and isinstance(call["inputs"], dict):
                text = texts[call["predictor"]]
                shelf = shelf_of(text, retriever, budget)
                lines.update(dict.fromkeys(shelf.lessons(call["inputs"])))
        by_rollout[number] = list(lines)
    return by_rollout
