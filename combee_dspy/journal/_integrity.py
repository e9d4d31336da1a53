"""Whether a journal is as it was written: a checksum for each row, and a mark of how many rows
there must be.

SQLite checks nothing but the frames of its log, and takes what it cannot read there for what was
never committed.
"""

from __future__ import annotations

import os
import re
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import JournalDamagedError, JournalError
from combee_dspy.files import open_in_place, read_plain, write_plain

VERSION = 2
"""Kept as SQLite's ``user_version``; another number is another format."""

SCHEMA = """
CREATE TABLE run(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL,
    finished REAL, seed INTEGER, identity TEXT NOT NULL, description TEXT NOT NULL, result TEXT,
    crc INTEGER);
CREATE TABLE effect(
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, role TEXT,
    purpose TEXT, step INTEGER, component TEXT, candidate TEXT, example TEXT, split TEXT,
    replicate INTEGER, score REAL, error TEXT, failed_in TEXT, started REAL, ended REAL,
    queued REAL, value TEXT, crc INTEGER, UNIQUE(run, key));
CREATE TABLE usage(
    effect INTEGER NOT NULL, role TEXT NOT NULL, model TEXT NOT NULL, calls INTEGER,
    errors INTEGER, cached INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER, dollars REAL,
    gpu_seconds REAL, seconds REAL, crc INTEGER);
CREATE INDEX usage_effect ON usage(effect);
CREATE TABLE event(
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, key TEXT NOT NULL, step INTEGER, component TEXT,
    kind TEXT NOT NULL, at REAL NOT NULL, data TEXT NOT NULL, crc INTEGER, UNIQUE(run, key));
"""

SUMMED = {
    "run": "id, name, state, created, finished, seed, identity, description, result",
    "effect": (
        "run, key, kind, role, purpose, step, component, candidate, example, split, replicate,"
        " score, error, failed_in, started, ended, queued, value"
    ),
    "usage": (
        "role, model, calls, errors, cached, prompt_tokens, completion_tokens, dollars,"
        " gpu_seconds, seconds"
    ),
    "event": "run, key, step, component, kind, at, data",
}
"""Columns of each table that its rows' checksums are of, in their order; of a usage also its
effect's run and key.
"""

_USAGE = f"effect.run, effect.key, usage.{SUMMED['usage'].replace(', ', ', usage.')}"
_TABLES = {
    "run": ("run", SUMMED["run"], "name"),
    "effect": ("effect", SUMMED["effect"], "key"),
    "usage": ("usage LEFT JOIN effect ON effect.id = usage.effect", _USAGE, "effect.key"),
    "event": ("event", SUMMED["event"], "key"),
}
_NOT_DAMAGE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
)
_COUNTED = ("effect", "usage", "event")
_COUNTS = "SELECT " + ", ".join(f"(SELECT coalesce(max(rowid), 0) FROM {one})" for one in _COUNTED)  # noqa: S608 - constants
_SPACES = re.compile(r"\s+")


def checksum(key: str, value: str) -> int:
    """Return what tells a value that was changed on disk from the one that was written."""
    return zlib.crc32(value.encode("utf-8", "surrogatepass"), zlib.crc32(key.encode()))


def row_sum(*values: object) -> int:
    """Return a checksum of a row's values: the same for what is written and for what SQLite makes
    of it.
    """
    found = 0
    for one in values:
        if isinstance(one, str):
            data = b"t" + one.encode("utf-8", "surrogatepass")
        elif isinstance(one, (int, float)) and one == one:
            data = b"r" + repr(float(one)).encode()
        else:
            data = (
                b"b" + one if isinstance(one, bytes) else b"n"
            )  # SQLite keeps what is no number as NULL
        found = zlib.crc32(data + b"\0", found)
    return found


class Mark:
    """How many rows a journal must hold, beside it: what was cut off at its end leaves no other
    trace.

    It stands in the file that names who holds the journal, and is written after each commit, so a
    process that dies in between leaves it behind the journal, never before it.

    Args:
        path: The file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def read(self) -> tuple[str, tuple[int, ...]]:
        """Return who held the journal last, or nobody, and how many effects, usages and events it
        must hold.
        """
        text = read_plain(self._path) if os.path.lexists(self._path) else b""
        lines = text.decode("utf-8", "replace").split("\n")
        counts = lines[1].split() if len(lines) > 1 else []
        whole = len(counts) == len(_COUNTED) and all(one.isdecimal() for one in counts)
        return lines[0], tuple(map(int, counts)) if whole else (0,) * len(_COUNTED)

    def hold(self, holder: str, counts: Sequence[int]) -> None:
        """Say who holds the journal from now on."""
        self._at = len(holder.encode()) + 1
        write_plain(self._path, f"{holder}\n{_written(counts)}\n")
        self._file = open_in_place(self._path)

    def write(self, connection: sqlite3.Connection) -> None:
        """Note how many rows are committed."""
        self._file.seek(self._at)
        self._file.write(_written(connection.execute(_COUNTS).fetchone()).encode())

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()


def _written(counts: Sequence[int]) -> str:
    return " ".join(f"{one:015d}" for one in counts)  # as long whatever they are: written in place


def check(connection: sqlite3.Connection, path: Path, mark: Sequence[int] = ()) -> int:
    """Return a journal's format, 0 where it is empty, once every row is as it was written.

    Args:
        connection: May read it.
        path: The file, to name it.
        mark: How many effects, usages and events it must hold at least.

    Raises:
        JournalDamagedError: Something was changed or is missing.
        JournalError: It cannot be opened.
    """
    version = VERSION
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and not any(mark):
            return 0
        problems = _problems(connection, version, mark)
        if problems:
            raise JournalDamagedError(
                str(path), f"{'; '.join(problems)}; {_readable(connection, version)}"
            )
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) in _NOT_DAMAGE:
            raise JournalError(f"{path} cannot be opened: {error}") from error
        raise JournalDamagedError(
            str(path), f"{error}; {_readable(connection, version)}"
        ) from error
    return version


def _problems(connection: sqlite3.Connection, version: int, mark: Sequence[int]) -> list[str]:
    if version not in (1, VERSION):
        return [f"its format is {version}, not {VERSION}"]
    if (found := connection.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        return [_SPACES.sub(" ", found)]
    problems = []
    if version == VERSION and _tables(connection) != _tables_of_schema():
        problems.append("its tables are not those of a journal")
    for table in _TABLES:
        count, last = connection.execute(
            f"SELECT count(*), coalesce(max(rowid), 0) FROM {table}"  # noqa: S608 - constants
        ).fetchone()
        if mark and table in _COUNTED:
            last = max(last, mark[_COUNTED.index(table)])
        if count < last:
            problems.append(
                f"{last - count} of {last} rows of {table!r} are missing, by what stands beside it"
            )
        if changed := _changed(connection, table, version):
            problems.append(
                f"{len(changed)} of {count} rows of {table!r} were changed, such as {changed[0]!r}"
            )
    return problems


def _changed(connection: sqlite3.Connection, table: str, version: int) -> list[str]:
    """Return the keys of rows that are not as they were written; before format 2 values of effects
    had checksums.
    """
    source, columns, key = _TABLES[table]
    if version == 1 and table != "effect":
        return []
    sql = (
        f"SELECT {key} FROM {source} WHERE {table}.crc IS NOT {_sum(connection, columns, version)}"  # noqa: S608 - constants
    )
    return [str(row[0]) for row in connection.execute(sql)]


def _sum(connection: sqlite3.Connection, columns: str, version: int) -> str:
    """Return SQL for the checksum of a row."""
    if version == 1:
        connection.create_function("checksum", 2, checksum)
        return "checksum(key, value)"
    connection.create_function("row_sum", -1, row_sum)
    return f"row_sum({columns})"


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [_SPACES.sub("", row[0]) for row in found]


def _tables_of_schema() -> list[str]:
    with closing(sqlite3.connect(":memory:")) as scratch:
        scratch.executescript(SCHEMA)
        return _tables(scratch)


def _readable(connection: sqlite3.Connection, version: int) -> str:
    """Say what can still be had: effects one by one, since what cannot be read may stand between
    them.
    """
    sound = count = last = 0
    sql = f"SELECT crc IS {_sum(connection, SUMMED['effect'], version)} FROM effect WHERE id = ?"  # noqa: S608 - constants
    try:
        for (number,) in connection.execute("SELECT id FROM effect NOT INDEXED"):
            if number <= last:
                break  # pages that point at one another never end
            last, count = number, count + 1
            with suppress(sqlite3.DatabaseError, TypeError):
                sound += connection.execute(sql, (number,)).fetchone()[0]
    except sqlite3.DatabaseError:
        pass  # what comes after cannot be reached
    return (
        f"{sound} of {count} effects that can be read are as they were written"
        if count
        else "no effect can be read"
    )


def migrate(connection: sqlite3.Connection) -> None:
    """Turn a journal of format 1, which had checksums of effects' values alone, into one of
    today.
    """
    connection.execute("BEGIN IMMEDIATE")
    for table in ("run", "usage", "event"):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")
    for table in ("run", "effect", "event"):
        connection.execute(f"UPDATE {table} SET crc = row_sum({SUMMED[table]})")  # noqa: S608 - constants
    usage = f"SELECT row_sum({_USAGE}) FROM effect WHERE effect.id = usage.effect"  # noqa: S608 - constants
    connection.execute(f"UPDATE usage SET crc = ({usage})")  # noqa: S608 - constants
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
