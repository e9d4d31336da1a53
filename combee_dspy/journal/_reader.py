"""Reading a journal, from any thread or process, without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from combee_dspy.exceptions import ArgumentValueError, JournalDamagedError

__all__ = ["JOURNAL", "Reader", "journal_file"]

JOURNAL = "journal.sqlite"
"""Name of a journal in a ``log_dir``."""


def journal_file(place: Path | str) -> Path:
    """Return the journal's file of a ``log_dir``, or the file itself.

    Raises:
        ArgumentValueError: There is none.
    """
    path = Path(place)
    found = path / JOURNAL if path.is_dir() else path
    if not found.is_file():
        raise ArgumentValueError("journal", str(place), "holds no journal", "Give the log_dir of a run.")
    return found


class Reader:
    """A read-only connection to a journal. Not for several threads at once; each makes its own.

    Args:
        path: The file.

    Raises:
        JournalDamagedError: It is no journal, or is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(
            f"file:{quote(str(path.resolve()))}?mode=ro", uri=True, timeout=30, check_same_thread=False
        )
        self._connection.row_factory = sqlite3.Row
        self.rows("SELECT id FROM run LIMIT 1")

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a SELECT.

        Raises:
            JournalDamagedError: The file cannot be read as a journal.
            sqlite3.OperationalError: The SELECT is wrong.
        """
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table: run" in str(error):
                raise JournalDamagedError(str(self.path), "it has no table of runs") from error
            if "decode to UTF-8" in str(error):
                raise JournalDamagedError(str(self.path), str(error)) from error
            raise
        except sqlite3.DatabaseError as error:
            raise JournalDamagedError(str(self.path), str(error)) from error

    def after(self, table: Literal["effect", "event"], cursor: int, run: int) -> list[sqlite3.Row]:
        """Return the rows of one run that were written after the one with id ``cursor``; 0 for all."""
        return self.rows(f"SELECT * FROM {table} WHERE run = ? AND id > ? ORDER BY id", (run, cursor))  # noqa: S608 - two literal names

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
