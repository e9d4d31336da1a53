"""The cache's file: a SQLite database of JSON texts, shared by threads and processes."""

from __future__ import annotations

import datetime
import os
import sqlite3
import threading
from pathlib import Path

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["CacheFile"]

_APPLICATION = 0x436F6D62
_VERSION = 1
_PATIENCE = 60.0
_TABLES = (
    """CREATE TABLE IF NOT EXISTS rollouts (key TEXT PRIMARY KEY, program TEXT NOT NULL, row TEXT NOT NULL,
    replicate INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS calls (key TEXT NOT NULL, draw INTEGER NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (key, draw)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS invalidations (at TEXT NOT NULL, reason TEXT NOT NULL, program TEXT, row TEXT,
    entries INTEGER NOT NULL)""",
)


class CacheFile:
    """Reads and writes one cache file. Thread-safe; several processes may use one file.

    Written in SQLite's WAL mode, one transaction an entry: what was written
    survives a killed process. Not for network file systems, as SQLite says.

    Args:
        path: The file; made where there is none, its directory too.

    Raises:
        ArgumentValueError: The file cannot be opened, or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._connection = self._open()

    def read_rollout(self, key: str) -> str | None:
        """Return the text of a rollout, ``None`` where there is none."""
        return self._one("SELECT payload FROM rollouts WHERE key = ?", (key,))

    def read_call(self, key: str, draw: int) -> str | None:
        """Return the text of an answer, ``None`` where there is none."""
        return self._one("SELECT payload FROM calls WHERE key = ? AND draw = ?", (key, draw))

    def write_rollout(self, key: str, program: str, row: str, replicate: int, payload: str) -> None:
        """Keep a rollout; what another process wrote first stands."""
        with self._lock, self._open_here() as connection:
            values = (key, program, row, replicate, payload)
            connection.execute("INSERT OR IGNORE INTO rollouts VALUES (?, ?, ?, ?, ?)", values)

    def write_call(self, key: str, draw: int, payload: str) -> None:
        """Keep an answer; what another process wrote first stands."""
        with self._lock, self._open_here() as connection:
            connection.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?)", (key, draw, payload))

    def forget(self, reason: str, program: str | None, row: str | None) -> set[str]:
        """Delete rollouts, and note why. Returns their keys.

        Args:
            reason: The reason given.
            program: Only those of this program, by fingerprint; ``None`` for all.
            row: Only those on this row, by hash; ``None`` for all.
        """
        chosen = "(?1 IS NULL OR program = ?1) AND (?2 IS NULL OR row = ?2)"
        with self._lock, self._open_here() as connection:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute(f"SELECT key FROM rollouts WHERE {chosen}", (program, row))  # noqa: S608 - a constant
            keys = {str(key) for (key,) in found}
            connection.execute(f"DELETE FROM rollouts WHERE {chosen}", (program, row))  # noqa: S608 - a constant
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            values = (at, reason, program, row, len(keys))
            connection.execute("INSERT INTO invalidations VALUES (?, ?, ?, ?, ?)", values)
        return keys

    def invalidations(self) -> list[tuple[str, str, int]]:
        """Return time (UTC, ISO 8601), reason and entries of each invalidation, in order."""
        with self._lock, self._open_here() as connection:
            found = connection.execute("SELECT at, reason, entries FROM invalidations ORDER BY rowid").fetchall()
        return [(str(at), str(reason), int(entries)) for at, reason, entries in found]

    def count(self) -> int:
        """Return how many rollouts are kept."""
        with self._lock, self._open_here() as connection:
            return int(connection.execute("SELECT count(*) FROM rollouts").fetchone()[0])

    def close(self) -> None:
        """Close the file. May be called twice; nothing else may be called afterwards."""
        with self._lock:
            if self._owner == os.getpid():
                self._connection.close()

    def _one(self, query: str, values: tuple[object, ...]) -> str | None:
        with self._lock, self._open_here() as connection:
            found = connection.execute(query, values).fetchone()
        return None if found is None or not isinstance(found[0], str) else found[0]

    def _open_here(self) -> sqlite3.Connection:
        if self._owner != os.getpid():
            # SQLite forbids a connection across a fork.
            self._owner, self._connection = os.getpid(), self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        remedy = "Give a path of its own for the cache, on a local disk."
        connection: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_PATIENCE, check_same_thread=False)
            with connection:
                # Whoever is first makes the tables; the others wait here, and find them.
                connection.execute("BEGIN IMMEDIATE")
                self._claim(connection, remedy)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except (sqlite3.Error, OSError, ArgumentValueError) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, ArgumentValueError):
                raise
            raise ArgumentValueError("cache", str(self.path), f"cannot be opened: {error}", remedy) from error
        return connection

    def _claim(self, connection: sqlite3.Connection, remedy: str) -> None:
        application, version, tables = (
            connection.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if tables and application != _APPLICATION:
            raise ArgumentValueError("cache", str(self.path), "is a database of something else", remedy)
        if tables and version != _VERSION:
            raise ArgumentValueError("cache", str(self.path), f"has format {version}, this is {_VERSION}", remedy)
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
