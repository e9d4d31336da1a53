"""Rollouts as rows of a table."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from combee_dspy.events import RolloutFinished
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._text import show

__all__ = ["Row", "parquet_of", "row_of", "table_of"]

CELL = 2_000
"""Characters of a cell. A longer text is cut, visibly."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout, as it is logged: the columns of the table, in order."""

    rollout_id: str
    iteration: int
    purpose: str
    split: str
    candidate_id: str
    example_id: str
    score: float
    error: str
    feedback: str
    inputs: str
    prediction: str
    seconds: float
    cached: bool


def row_of(event: RolloutFinished, redactor: Redactor) -> Row:
    """Return the row of one rollout, without keys and with long cells cut."""
    rollout = event.rollout

    def cell(value: Any) -> str:
        return redactor.text(show(value, CELL))

    return Row(
        rollout_id=event.rollout_id,
        iteration=event.iteration,
        purpose=event.purpose,
        split=event.split,
        candidate_id=event.candidate_id,
        example_id=rollout.example_id,
        score=float(rollout.score),
        error=cell(rollout.error),
        feedback=cell(rollout.feedback),
        inputs=cell(_inputs(rollout.example)),
        prediction=cell(rollout.prediction),
        seconds=float(rollout.seconds),
        cached=event.cached,
    )


def table_of(rows: Sequence[Row], limit: int) -> dict[str, Any]:
    """Return rows in the JSON layout that MLflow's table view reads (pandas' ``split``).

    Args:
        rows: The rows.
        limit: Rows at most; of more, evenly spaced ones are taken.
    """
    taken = rows if len(rows) <= limit else [rows[index * len(rows) // limit] for index in range(limit)]
    columns = [field.name for field in fields(Row)]
    return {"columns": columns, "data": [[_json(getattr(row, name)) for name in columns] for row in taken]}


def parquet_of(rows: Sequence[Row]) -> bytes | None:
    """Return rows as a zstd Parquet file; ``None`` where pyarrow is not installed."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return None
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(field.name, types[str(field.type)]) for field in fields(Row)])
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([asdict(row) for row in rows], schema=schema), sink, compression="zstd")
    return sink.getvalue()


def _inputs(example: Any) -> Any:
    try:
        return example.inputs()
    except (AttributeError, ValueError):
        # No dspy.Example, or one whose inputs were never marked: show all of it.
        return example


def _json(value: Any) -> Any:
    # JSON has no NaN: a browser would refuse the whole table.
    return None if isinstance(value, float) and not math.isfinite(value) else value
