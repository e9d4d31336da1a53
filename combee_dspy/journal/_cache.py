"""A file of rollouts that several runs share: whichever run comes first pays for one."""

from __future__ import annotations

import logging
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import orjson
from pydantic import JsonValue

from combee_dspy.exceptions import JournalDamagedError, JournalError
from combee_dspy.files import make_folder, open_lock
from combee_dspy.journal._writer import connect
from combee_dspy.json_texts import dump

logger = logging.getLogger("combee_dspy")


class Cache:
    """Values by the content they depend on, in a SQLite file that several processes may use at
    once.

    Lives on one thread. Once it is open nothing that its disk does ends a run: what fails is warned
    of, and not tried again.

    Args:
        path: The file; made where it is missing.

    Raises:
        JournalDamagedError: The file is there and is no cache.
        JournalError: It cannot be opened.
        NotPlainFileError: A link or a special file lies where one of its files belongs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._given_up: set[str] = set()
        try:
            make_folder(path.parent)
            # Of processes that turn a new file to WAL at once, SQLite refuses one without letting
            # it wait.
            with open_lock(path.with_name(f"{path.name}.lock"), timeout=30):
                self._connection = connect(path)
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute(
                    "CREATE TABLE IF NOT EXISTS cached(key TEXT PRIMARY KEY, value TEXT NOT NULL,"
                    " crc INTEGER NOT NULL)"
                )
        except (OSError, sqlite3.OperationalError) as error:
            raise JournalError(f"{path} cannot be opened: {error}. Give another cache.") from error
        except sqlite3.DatabaseError as error:
            raise JournalDamagedError(str(path), f"it is no cache ({error})") from error

    def find(self, key: str) -> dict[str, JsonValue] | None:
        """Return a value, or ``None`` where there is none, it was changed on disk, or the file
        cannot be read.
        """
        row = self._tried("read", "SELECT value, crc FROM cached WHERE key = ?", key)
        if row is None or row[1] != _checksum(key, row[0]):
            return None
        value: dict[str, JsonValue] = orjson.loads(row[0])
        return value

    def keep(self, key: str, value: object) -> None:
        """Keep a value, where the file can be written; the first one stays."""
        text = dump(value)
        self._tried(
            "written",
            "INSERT OR IGNORE INTO cached VALUES (?, ?, ?)",
            key,
            text,
            _checksum(key, text),
        )

    def _tried(self, what: str, sql: str, *parameters: Any) -> Any | None:
        if what in self._given_up:
            return None
        try:
            return self._connection.execute(sql, parameters).fetchone()
        except sqlite3.Error as error:
            self._given_up.add(what)
            logger.warning(
                "cache %s can no longer be %s (%s): this run goes on without",
                self._path,
                what,
                error,
            )
            return None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _checksum(key: str, value: str) -> int:
    return zlib.crc32(value.encode("utf-8", "surrogatepass"), zlib.crc32(key.encode()))
