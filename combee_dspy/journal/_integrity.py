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
from collections.abc import Callable, Sequence
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
# Types of columns as SQLite names them; a column that may be empty also has "null".
_TYPES = {
    "text": (
        "run.name, run.state, run.identity, run.description, effect.key, effect.kind, event.key,"
        " event.kind, event.data, usage.role, usage.model"
    ),
    "text null": (
        "run.result, effect.role, effect.purpose, effect.component, effect.candidate,"
        " effect.example, effect.split, effect.error, effect.failed_in, effect.value,"
        " event.component"
    ),
    "integer": "effect.run, event.run, usage.effect",
    "integer null": (
        "run.seed, effect.step, effect.replicate, event.step, usage.calls, usage.errors,"
        " usage.cached, usage.prompt_tokens, usage.completion_tokens"
    ),
    "real": "run.created, event.at",
    "real null": (
        "run.finished, effect.score, effect.started, effect.ended, effect.queued, usage.dollars,"
        " usage.gpu_seconds, usage.seconds"
    ),
}
_TYPE_OF = {
    column: types.split() for types, columns in _TYPES.items() for column in columns.split(", ")
}
_LARGEST = dict.fromkeys(_TYPE_OF, "1e15") | {"effect.score": "1.7e308", "run.seed": ""}
"""No number of a column is as large; a user chooses the seed and what a metric returns."""

_NOT_DAMAGE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
)
_COUNTED = ("effect", "usage", "event")
_COUNTS = ", ".join(
    f"(SELECT coalesce(max(rowid), 0) FROM {table})"  # noqa: S608 - constants
    for table in _COUNTED
)
_SPACES = re.compile(r"\s+")


def checksum(key: str, value: str) -> int:
    """Return what tells a value that was changed on disk from the one that was written."""
    return zlib.crc32(value.encode("utf-8", "surrogatepass"), zlib.crc32(key.encode()))


def row_sum(*values: object) -> int:
    """Return a checksum of a row's values: the same for what is written and for what SQLite makes
    of it.
    """
    return zlib.crc32(b"".join(map(_as_bytes, values)))


def _as_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return b"t%b\0" % value.encode("utf-8", "surrogatepass")
    if isinstance(value, (int, float)) and value == value:
        return b"r%b\0" % repr(float(value)).encode()
    # SQLite keeps what is no number as NULL.
    return b"b%b\0" % value if isinstance(value, bytes) else b"n\0"


def _effect_differs(crc: int | None, *values: Any) -> bool:
    """Return whether a row of ``effect`` is not as it was written; its value comes as bytes."""
    run, key, kind, role, purpose, step, component, candidate, example, split, *more = values
    replicate, score, error, failed_in, started, ended, queued, value = more
    if value is not None and error is None and failed_in is None:
        # Most rows: written out, which is three times as fast.
        text = (
            f"r{run}.0\0t{key}\0t{kind}\0t{role}\0t{purpose}\0r{step}.0\0t{component}\0t{candidate}"
            f"\0t{example}\0t{split}\0r{replicate}.0\0r{score}\0n\0n\0r{started}\0r{ended}\0r{queued}"
            "\0t"
        )
        if zlib.crc32(b"\0", zlib.crc32(value, zlib.crc32(text.encode()))) == crc:
            return False
    whole = None if value is None else value.decode("utf-8", "surrogatepass")
    return row_sum(*values[:-1], whole) != crc


def _usage_differs(crc: int | None, *values: Any) -> bool:
    run, key, role, model, calls, errors, cached, prompt, completion, *prices = values
    dollars, gpu_seconds, seconds = prices
    text = (
        f"r{run}.0\0t{key}\0t{role}\0t{model}\0r{calls}.0\0r{errors}.0\0r{cached}.0\0r{prompt}.0"
        f"\0r{completion}.0\0r{dollars}\0n\0r{seconds}\0"
    )
    if gpu_seconds is None and zlib.crc32(text.encode()) == crc:
        return False
    return row_sum(*values) != crc


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
        whole = len(counts) == len(_COUNTED) and all(count.isdecimal() for count in counts)
        return lines[0], tuple(map(int, counts)) if whole else (0,) * len(_COUNTED)

    def hold(self, holder: str, counts: Sequence[int]) -> None:
        """Say who holds the journal from now on."""
        self._at = len(holder.encode()) + 1
        write_plain(self._path, f"{holder}\n{_written(counts)}\n")
        self._file = open_in_place(self._path)

    def write(self, connection: sqlite3.Connection) -> None:
        """Note how many rows are committed."""
        self._file.seek(self._at)
        self._file.write(_written(connection.execute(f"SELECT {_COUNTS}").fetchone()).encode())

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()


def _written(counts: Sequence[int]) -> str:
    return " ".join(
        f"{count:015d}" for count in counts
    )  # as long whatever they are: written in place


def check(connection: sqlite3.Connection, path: Path, mark: Sequence[int] = ()) -> bool:
    """Return whether a journal has been begun, once every row is as it was written.

    Args:
        connection: May read it.
        path: The file, to name it.
        mark: How many effects, usages and events it must hold at least.

    Raises:
        JournalDamagedError: Something was changed or is missing.
        JournalError: It cannot be opened.
    """
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and not any(mark):
            return False
        problems = _problems(connection, version, mark)
        if problems:
            raise JournalDamagedError(str(path), f"{'; '.join(problems)}; {_readable(connection)}")
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) in _NOT_DAMAGE:
            raise JournalError(f"{path} cannot be opened: {error}") from error
        raise JournalDamagedError(str(path), f"{error}; {_readable(connection)}") from error
    return True


def _problems(connection: sqlite3.Connection, version: int, mark: Sequence[int]) -> list[str]:
    if version != VERSION:
        return [f"its format is {version}, not {VERSION}"]
    if (answer := connection.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        return [_SPACES.sub(" ", answer)]
    problems = []
    if _tables(connection) != _tables_of_schema():
        problems.append("its tables are not those of a journal")
        return problems
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
        if changed := _changed(connection, table):
            problems.append(
                f"{len(changed)} of {count} rows of {table!r} were changed, such as {changed[0]!r}"
            )
        if column := _mistyped(connection, table):
            problems.append(f"{column} holds a value that nobody writes there")
    return problems


def _changed(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return the keys of rows that are not as they were written."""
    source, columns, key = _TABLES[table]
    if table in _DIFFERS:
        name, function = f"{table}_differs", _DIFFERS[table]
        connection.create_function(name, -1, function)
        columns = columns.removesuffix(", value")
        value = ", CAST(value AS BLOB)" if table == "effect" else ""
        differs = f"{name}({table}.crc, {columns}{value})"
    else:
        differs = f"{table}.crc IS NOT {_sum(connection, columns)}"
    sql = f"SELECT {key} FROM {source} WHERE {differs}"  # noqa: S608 - constants
    return [str(row[0]) for row in connection.execute(sql)]


_DIFFERS: dict[str, Callable[..., bool]] = {"effect": _effect_differs, "usage": _usage_differs}


def _mistyped(connection: sqlite3.Connection, table: str) -> str:
    """Return a column that holds a value that nobody writes there; empty where there is none."""
    columns = {name: types for name, types in _TYPE_OF.items() if name.startswith(f"{table}.")}
    tests = {
        name: f"typeof({name}) NOT IN ({', '.join(map(repr, types))})"
        + ("" if "text" in types or not _LARGEST[name] else f" OR abs({name}) >= {_LARGEST[name]}")
        for name, types in columns.items()
    }
    whens = " ".join(f"WHEN {test} THEN '{name}'" for name, test in tests.items())
    where = " OR ".join(tests.values())
    sql = f"SELECT CASE {whens} END FROM {table} WHERE {where} LIMIT 1"  # noqa: S608 - constants
    row = connection.execute(sql).fetchone()
    return row[0] if row else ""


def _sum(connection: sqlite3.Connection, columns: str) -> str:
    """Return SQL for the checksum of a row."""
    connection.create_function("row_sum", -1, row_sum)
    return f"row_sum({columns})"


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [_SPACES.sub("", row[0]) for row in rows]


def _tables_of_schema() -> list[str]:
    with closing(sqlite3.connect(":memory:")) as scratch:
        scratch.executescript(SCHEMA)
        return _tables(scratch)


def _readable(connection: sqlite3.Connection) -> str:
    """Say what can still be had: effects one by one, since what cannot be read may stand between
    them.
    """
    sound = count = last = 0
    sql = f"SELECT crc IS {_sum(connection, SUMMED['effect'])} FROM effect WHERE id = ?"  # noqa: S608 - constants
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
