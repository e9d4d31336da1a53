"""Which lessons were looked up for which validation row, and what became of the row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.artifacts import Memory
from combee_dspy.exceptions import UnknownStrategyError
from combee_dspy.journal import RunHistory
from combee_dspy.memory import query_of, shelf_of
from combee_dspy.registry import Spec
from combee_dspy.tracking._text import cut

__all__ = ["lookup_facts"]

_MOST_QUOTED, _MOST_ROWS = 200, 500


def lookup_facts(
    history: RunHistory, chosen: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the validation rows of a memory: the first score of each, the last one by the chosen
    text or an ancestor, and the lessons that the chosen text shows it.

    None for another artifact, nor where a lookup would wait for a service, or goes by a class that
    no name leads to.
    """
    spec = history.about.spec("artifact")
    if not chosen or spec.get("name") != Memory.name:
        return []
    try:
        memory = Spec.from_dict(spec).build()
    except UnknownStrategyError:
        return []
    if not isinstance(memory, Memory) or memory.retriever.waits:
        return []
    lineage = {chosen["candidate"]}
    for candidate in reversed(candidates):
        if candidate["candidate"] in lineage:
            lineage.update(candidate["parents"])
    rows: dict[str, dict[str, Any]] = {}
    sql = (
        "SELECT candidate, example, score, json_extract(value, '$.calls') AS calls FROM effect"
        " WHERE run = ? AND kind = 'rollout' AND split = 'validation' ORDER BY id"
    )
    for name, example, score, calls in history.reader.stream(sql, (history.run,)):
        if name in lineage and (example in rows or len(rows) < _MOST_ROWS):
            rows[example] = {"before": score, **rows.get(example, {}), "after": score}
            rows[example] |= _seen(memory, chosen["texts"], json.loads(calls or "[]"))
    return list(rows.values())


def _seen(
    memory: Memory, texts: Mapping[str, str], calls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the inputs of a row's first call, and the lessons that its calls are shown."""
    lessons: dict[str, None] = {}
    for call in calls:
        if call["predictor"] in texts:
            text = texts[call["predictor"]]
            shelf = shelf_of(text, memory.retriever, memory.budget_tokens)
            lessons |= dict.fromkeys(shelf.lessons(call["inputs"]))
    inputs = " ".join(query_of(call["inputs"]) for call in calls[:1])
    return {
        "inputs": cut(inputs, _MOST_QUOTED),
        "lessons": [cut(line, _MOST_QUOTED) for line in lessons],
    }
