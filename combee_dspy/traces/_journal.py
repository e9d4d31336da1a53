"""Traces in a journal of this package: of a run, or of what a canary served."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import ClassVar

import orjson

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.rollouts import decode_rollout, decode_value
from combee_dspy.strategies import parameters
from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._records import Trace, as_fields

# How many rows are held at a time.
_PAGE = 500
ROLLOUTS = """
    SELECT effect.id, run.name AS run, key, purpose, candidate, example, split, score, error,
        started, value, (SELECT model FROM usage WHERE usage.effect = effect.id AND usage.role IN
        ('task', 'serving') LIMIT 1) AS model
    FROM effect JOIN run ON run.id = effect.run
"""
_ROWS = f"""{ROLLOUTS}
    WHERE effect.kind = 'rollout' AND split != 'heldout' AND effect.id > ? AND (? IN ('', run.name))
    ORDER BY effect.id LIMIT ?
"""


@parameters
class JournalTraces(TraceSource):
    """The rollouts of a Combee run, or those that a canary served, oldest first.

    Their calls carry the paths of predictors. Held-out rollouts are left out: nothing learns from
    them. A journal says no expected answers; feedback and scores are there. Inputs that it cut are
    those of the first call; a run knows by ``row`` which example they are of.

    Args:
        path: The ``log_dir`` of a run, or its journal.
        run: The name of one run in the journal; empty for all.
    """

    name: ClassVar[str] = "journal"

    path: str
    run: str = ""

    def read(self, after: str = "") -> Iterator[Trace]:
        """Yield a trace a rollout; a cursor is the rollout's number in the journal."""
        if not (after or "0").isdecimal():
            remedy = "Give the cursor of a trace of this journal."
            raise ArgumentValueError("after", after, "is no number of a rollout", remedy)
        last = int(after or 0)
        with Reader(journal_file(self.path)) as reader:
            while rows := reader.rows(_ROWS, (last, self.run, _PAGE)):
                last = rows[-1]["id"]
                yield from filter(None, (trace_of_rollout(row, self.path) for row in rows))


def trace_of_rollout(row: sqlite3.Row, path: str) -> Trace | None:
    """Return a row of ``ROLLOUTS`` as a trace; ``None`` where it has no values that JSON has.

    Raises:
        ArgumentValueError: The journal at ``path`` keeps hashes alone.
    """
    value = orjson.loads(row["value"])
    inputs = value.pop("inputs", None)
    if isinstance(inputs, str) and inputs.startswith("hash:"):
        problem = "keeps hashes alone, and there is nothing to read"
        remedy = "Use a journal of a run or server with Privacy(texts='redacted') or 'all'."
        raise ArgumentValueError("path", path, problem, remedy)
    rollout = decode_rollout(value)
    if rollout is None:
        return None
    fields = _fields_of(inputs)
    if fields is None:  # cut, since people alone were to read it
        fields = dict(rollout.calls[0].inputs) if rollout.calls else {}
    if not fields:
        return None
    return Trace(
        f"{row['run']}/{row['key']}",
        fields,
        rollout.prediction,
        rollout.calls,
        row["score"],
        rollout.feedback,
        error=row["error"] or "",
        time=row["started"] or None,
        prompt=row["candidate"],
        model=row["model"] or "",
        tags={"purpose": row["purpose"], "split": row["split"]},
        cursor=str(row["id"]),
        row=row["example"],
    )


def _fields_of(inputs: object) -> dict[str, object] | None:
    """Return the inputs that stand beside a rollout; ``None`` where they were cut."""
    if isinstance(inputs, str):
        try:
            inputs = json.loads(inputs)
        except ValueError:
            return None
    else:
        inputs = {name: decode_value(value) for name, value in as_fields(inputs, "").items()}
    return as_fields(inputs, "")
