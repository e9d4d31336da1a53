"""Examples from files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import DataSourceError

__all__ = ["read_examples", "rooted"]


def read_examples(split: str, path: Path, inputs: Sequence[str]) -> list[Any]:
    """Read one split.

    Args:
        split: Its name, for errors.
        path: A ``.jsonl`` (one object a line), ``.json`` (a list of objects) or ``.csv`` (with a header) file, UTF-8.
        inputs: Fields that the program is given.

    Returns:
        One ``dspy.Example`` a row, its inputs marked.

    Raises:
        DataSourceError: The file cannot be read, or a row is no object or lacks an input.
    """
    import dspy

    def refuse(reason: str, remedy: str) -> DataSourceError:
        return DataSourceError(f"data.{split}", str(path), reason, remedy)

    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise refuse(f"its ending is none of {', '.join(_READERS)}", "Rename or convert the file.")
    try:
        rows = reader(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise refuse(f"{type(error).__name__}: {error}", "Give a UTF-8 file in the format of its ending.") from error
    if not rows:
        raise refuse("it holds no rows", "Give at least one example.")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise refuse(f"row {number} is no object with named fields", "Each row maps names to values.")
        missing = [name for name in inputs if name not in row]
        if missing:
            remedy = f"Its fields: {', '.join(row)}. Correct data.inputs."
            raise refuse(f"row {number} has no field {missing[0]!r}", remedy)
    return [dspy.Example(dict(row)).with_inputs(*inputs) for row in rows]


def rooted(params: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a benchmark's parameters, a relative ``path`` that exists under a folder made absolute.

    Addresses and hub ids stay as they are, and so does a path that is not there: the benchmark refuses it.
    """
    path = params.get("path")
    found = isinstance(path, str) and (folder / path).exists()
    return {**params, "path": str((folder / str(path)).resolve())} if found else dict(params)


def _lines(text: str) -> list[Any]:
    # Not splitlines(): JSON strings may hold characters that it takes for line ends.
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _list(text: str) -> list[Any]:
    rows = json.loads(text)
    if not isinstance(rows, list):
        raise ValueError("the file holds no list")
    return rows


def _table(text: str) -> list[Any]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


_READERS: Mapping[str, Callable[[str], list[Any]]] = {".jsonl": _lines, ".json": _list, ".csv": _table}
