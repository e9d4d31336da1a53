"""Tasks in an APPWORLD_ROOT, as rows."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import DataSourceError

__all__ = ["SETS", "find_root", "read_rows"]

SETS = ("train", "dev", "test_normal", "test_challenge")
NAME = "appworld"
HOW = (
    "Give root=, or set APPWORLD_ROOT, to the directory that holds AppWorld's data/. `combee"
    " appworld status` says how to download it; `combee appworld miniature DIR` makes a small world"
    " to try."
)
_TASK_ID = re.compile(r"[0-9a-zA-Z]+_[0-9]+")


def find_root(root: str | Path | None) -> Path:
    """Return the root that is meant: as given, else ``$APPWORLD_ROOT``.

    Raises:
        DataSourceError: None is given, or it holds no AppWorld data.
    """
    named = root or os.environ.get("APPWORLD_ROOT")
    if not named:
        raise DataSourceError(NAME, "no root", "AppWorld's data is on no hub, and no root is given", HOW)
    path = Path(named).expanduser()
    if not (path / "data" / "datasets").is_dir() or not (path / "data" / "tasks").is_dir():
        raise DataSourceError(NAME, str(path), "it holds no data/datasets and data/tasks", HOW)
    return path


def read_rows(root: Path, name: str) -> list[dict[str, Any]]:
    """Return the tasks of one set, in AppWorld's order.

    A row holds what an agent is given, and ``world``: the SHA-256 of all the
    task's files, so that a row's hash stands for its world and its checks too.

    Raises:
        DataSourceError: The set or one of its tasks cannot be read.
    """
    path = root / "data" / "datasets" / f"{name}.txt"
    try:
        # An id may carry a tag after a colon.
        ids = [line.split(":")[0].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataSourceError(NAME, str(path), f"{type(error).__name__}: {error}", HOW) from error
    if not ids:
        raise DataSourceError(NAME, str(path), "it names no task", HOW)
    return [_row(root, task_id, path) for task_id in ids]


def _row(root: Path, task_id: str, path: Path) -> dict[str, Any]:
    # The id becomes part of a path.
    if not _TASK_ID.fullmatch(task_id):
        raise DataSourceError(NAME, str(path), f"{task_id[:80]!r} is no task id", HOW)
    folder = root / "data" / "tasks" / task_id
    try:
        spec = json.loads((folder / "specs.json").read_text(encoding="utf-8"))
        person = spec.get("supervisor") or spec["main_user"]
        row = {
            "task_id": task_id,
            "instruction": str(spec["instruction"]),
            "supervisor": {key: str(person[key]) for key in ("first_name", "last_name", "email", "phone_number")},
            "now": str(spec["datetime"]),
        }
        return {**row, "world": _digest(folder)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"task {task_id}: {type(error).__name__}: {error}"
        raise DataSourceError(NAME, str(folder), reason, HOW) from error


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            total.update(f"{file.relative_to(folder).as_posix()} {content}\n".encode())
    return total.hexdigest()
