"""Tables of query results: on a screen, or as JSON lines, CSV or Parquet."""

from __future__ import annotations

import json
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking import one_line

__all__ = ["Format", "write_table"]

CELL = 60
"""Characters of a cell on a screen."""


class Format(StrEnum):
    """How a table is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def write_table(table: Any, form: Format, output: Path | None, limit: int | None = None) -> None:
    """Write a table to a file, or to standard output.

    Args:
        table: A ``pyarrow.Table``.
        form: How. Parquet needs a file.
        output: The file.
        limit: Rows of a table on a screen; ``None`` is all.

    Raises:
        ArgumentValueError: The file cannot be written, or is missing.
    """
    if output is None:
        if form is Format.PARQUET:
            raise ArgumentValueError("--format", str(form), "cannot be shown on a screen", "Add --output FILE.")
        _show(table, form, limit)
        return
    try:
        if form is Format.PARQUET:
            from pyarrow import parquet

            parquet.write_table(table, output, compression="zstd")
        elif form is Format.CSV:
            output.write_bytes(_csv(table))
        else:
            output.write_text(_json_lines(table), encoding="utf-8")
    except OSError as error:
        raise ArgumentValueError(
            "--output", str(output), f"cannot be written: {error}", "Name another file."
        ) from error


def _show(table: Any, form: Format, limit: int | None) -> None:
    if form is Format.JSON:
        sys.stdout.write(_json_lines(table))
    elif form is Format.CSV:
        sys.stdout.write(_csv(table).decode("utf-8", "replace"))
    else:
        _print(table, limit)


def _print(table: Any, limit: int | None) -> None:
    shown = Table()
    for name in table.column_names:
        shown.add_column(name, no_wrap=True, overflow="ellipsis")
    rows = table if limit is None else table.slice(0, limit)
    for row in rows.to_pylist():
        # What a run wrote may reach a terminal, but must not steer it.
        shown.add_row(*(Text(one_line(_cell(value), CELL)) for value in row.values()))
    console = Console()
    console.print(shown)
    if rows.num_rows < table.num_rows:
        console.print(f"{rows.num_rows} of {table.num_rows} rows; --limit 0 shows all of them.")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _json_lines(table: Any) -> str:
    # ASCII, so that no control character and no lone surrogate reaches a terminal or a file.
    return "".join(json.dumps(_finite(row)) + "\n" for row in table.to_pylist())


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    # JSON has no NaN and no infinity.
    def usable(value: Any) -> bool:
        return not isinstance(value, float) or math.isfinite(value)

    return {name: value if usable(value) else None for name, value in row.items()}


def _csv(table: Any) -> bytes:
    import pyarrow as pa
    from pyarrow import csv

    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink)
    return bytes(sink.getvalue().to_pybytes())
