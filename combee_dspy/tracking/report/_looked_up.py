"""Which lessons were looked up for which validation row, and what became of the row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from combee_dspy.artifacts import Memory
from combee_dspy.journal import RunHistory
from combee_dspy.memory import shelf_of
from combee_dspy.registry import Spec
from combee_dspy.tracking._text import cut

__all__ = ["lookup_facts"]

_MOST_QUOTED, _MOST_ROWS = 200, 500


@dataclass(slots=True)
class _LookedUp:
    """A validation row: its first score, its last one by the chosen text or an ancestor, and what
    that text shows it.
    """

    before: float
    after: float
    inputs: str
    lessons: list[str] = field(default_factory=list)


def lookup_facts(
    history: RunHistory, chosen: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the validation rows of a memory, in the order of their numbers; none for another
    artifact, nor where a lookup would wait for a service.
    """
    spec = history.about.spec("artifact")
    if not chosen or spec.get("name") != Memory.name:
        return []
    memory = Spec.from_dict(spec).build()
    if not isinstance(memory, Memory) or memory.retriever.waits:
        return []
    lineage = {chosen["candidate"]}
    for candidate in reversed(candidates):
        if candidate["candidate"] in lineage:
            lineage.update(candidate["parents"])
    rows: dict[str, _LookedUp] = {}
    sql = (
        "SELECT candidate, example, score, json_extract(value, '$.calls') AS calls FROM effect"
        " WHERE run = ? AND kind = 'rollout' AND split = 'validation' ORDER BY id"
    )
    for candidate, example, score, calls in history.reader.stream(sql, (history.run,)):
        if candidate in lineage and (example in rows or len(rows) < _MOST_ROWS):
            row = rows.setdefault(example, _LookedUp(score, score, ""))
            row.after = score
            row.inputs, row.lessons = _seen(memory, chosen["texts"], calls)
    return [asdict(row) for row in rows.values()]


def _seen(memory: Memory, texts: Mapping[str, str], calls: str | None) -> tuple[str, list[str]]:
    """Return the inputs of a row's first call, and the lessons that its calls are shown."""
    inputs: list[str] = []
    lessons: dict[str, None] = {}
    for component, call in _calls(calls):
        inputs.append(" ".join(map(str, call.values())))
        if component in texts:
            shelf = shelf_of(texts[component], memory.retriever, memory.budget_tokens)
            lessons |= dict.fromkeys(shelf.lessons(call))
    return cut("".join(inputs[:1]), _MOST_QUOTED), [cut(line, _MOST_QUOTED) for line in lessons]


def _calls(text: str | None) -> Iterator[tuple[str, Mapping[str, object]]]:
    for call in json.loads(text or "[]"):
        if isinstance(call["inputs"], dict):
            yield call["predictor"], call["inputs"]
