"""Tasks in Harbor's layout: a folder each, with ``task.toml`` and ``instruction.md``."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import DataSourceError
from combee_dspy.files import read_plain

__all__ = ["Task", "read_tasks"]

_NAME = "terminal-bench"


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        name: Its folder's name.
        folder: Its folder, absolute.
        instruction: What the agent is told.
        digest: SHA-256 of its files, names and contents.
        metadata: ``[metadata]`` of ``task.toml``.
    """

    name: str
    folder: Path
    instruction: str
    digest: str
    metadata: Mapping[str, Any]

    @property
    def row(self) -> dict[str, str]:
        """What stands for the task in a split's hashes."""
        return {"task": self.name, "files": self.digest}


def read_tasks(folder: str | Path) -> tuple[Task, ...]:
    """Return the tasks below a folder, sorted by name.

    Args:
        folder: It holds the tasks' folders, or one folder that does, as ``harbor download`` leaves
            it.

    Raises:
        DataSourceError: There are none, or one cannot be read.
    """
    root = Path(folder).expanduser().resolve()
    found = sorted(root.glob("*/task.toml")) or sorted(root.glob("*/*/task.toml"))
    if not found:
        remedy = "Run `harbor download terminal-bench@2.0 -o FOLDER` with Harbor's own environment, and name FOLDER."
        raise DataSourceError(_NAME, str(root), "no folder in it has a task.toml", remedy)
    names = [file.parent.name for file in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DataSourceError(_NAME, str(root), f"several tasks are named {sorted(twice)[0]!r}", "Name one dataset.")
    return tuple(_read(file.parent, root) for file in found)


def _read(folder: Path, root: Path) -> Task:
    try:
        settings = tomllib.loads(read_plain(folder / "task.toml", follow=True).decode("utf-8"))
        instruction = read_plain(folder / "instruction.md", follow=True).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = f"task {folder.name!r}: {type(error).__name__}: {error}"
        raise DataSourceError(_NAME, str(root), reason, "Download it again, or take it out.") from error
    metadata = settings.get("metadata")
    return Task(
        folder.name,
        folder,
        instruction,
        _digest(folder),
        metadata if isinstance(metadata, dict) else {},
    )


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
