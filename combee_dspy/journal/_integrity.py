"""Checks that a journal is as it was written, by a checksum of each row and the rows' numbers.

SQLite checks nothing but the frames of its log, and takes what it cannot read there for what was
never committed.
"""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from combee_dspy.exceptions import JournalDamagedError, JournalError

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
"""Columns of each table that the checksum of a row is of, in their order.

That of a usage is also of its effect's run and key.
"""

COUNTED = ("effect", "usage", "event")
"""Tables whose rows are never removed: the highest number is how many there must be."""

_USAGE = f"effect.run, effect.key, usage.{SUMMED['usage'].replace(', ', ', usage.')}"
_CHECKED = {
    "run": ("run", SUMMED["run"], "name"),
    "effect": ("effect", SUMMED["effect"], "key"),
    "usage": ("usage LEFT JOIN effect ON effect.id = usage.effect", _USAGE, "effect.key"),
    "event": ("event", SUMMED["event"], "key"),
}
# No number of another column is as large; a user chooses the seed, and what a metric returns.
_LARGEST = 1e15
_LARGEST_OF = {"seed": 2.0**63, "score": 1.7e308}
_LARGEST_OF |= dict.fromkeys(("created", "finished", "started", "ended", "at"), 6e10)  # year 3871

# Columns that allow NULL in the schema, and in which nobody writes any.
_NEVER_NULL = {
    "effect": (
        *("purpose", "step", "component", "candidate", "example", "split", "replicate"),
        *("started", "ended", "queued"),
    ),
    "usage": ("calls", "errors", "cached", "prompt_tokens", "completion_tokens", "seconds"),
    "event": ("step",),
}

_NOT_DAMAGE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
)
_SPACES = re.compile(r"\s+")


def row_sum(*values: object) -> int:
    """Return a row's checksum, the same for what is written and for what SQLite makes of it."""
    # In one expression, the frequent types first: every reader checks every row.
    parts = [
        f"t{value}\0"
        if type(value) is str
        else "n\0"
        if value is None
        # SQLite keeps -0.0 as 0.0.
        else f"r{value + 0.0!r}\0"
        if type(value) is float and value == value
        else f"r{value}.0\0"
        if type(value) is int and -_LARGEST < value < _LARGEST
        else _part_of(value)
        for value in values
    ]
    return zlib.crc32("".join(parts).encode("utf-8", "surrogatepass"))


def _part_of(value: object) -> str:
    """Return what any value adds to a checksum."""
    if isinstance(value, str):
        return f"t{value}\0"
    # SQLite keeps what is no number as NULL.
    if value is None or value != value:
        return "n\0"
    return f"r{float(value) + 0.0!r}\0" if isinstance(value, (int, float)) else f"b{value!r}\0"


def check(connection: sqlite3.Connection, path: Path, counts: Sequence[int] = ()) -> bool:
    """Return whether a journal was begun, once every row is as it was written.

    Args:
        connection: May read it.
        path: The file, to name it.
        counts: How many rows of each of :data:`COUNTED` it must hold at least.

    Raises:
        JournalDamagedError: Something was changed or is missing.
        JournalError: It cannot be opened.
    """
    connection.create_function("row_sum", -1, row_sum)
    try:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and not any(counts):
            return False
        if problems := list(_problems(connection, counts)):
            raise JournalDamagedError(str(path), f"{'; '.join(problems)}; {_readable(connection)}")
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) in _NOT_DAMAGE:
            raise JournalError(f"{path} cannot be opened: {error}") from error
        raise JournalDamagedError(str(path), f"{error}; {_readable(connection)}") from error
    return True


def _problems(connection: sqlite3.Connection, counts: Sequence[int]) -> Iterator[str]:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    answer = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if version != VERSION:
        yield f"its format is {version}, not {VERSION}"
    elif answer != "ok":
        yield _SPACES.sub(" ", answer)
    elif _tables(connection) != _tables_of_schema():
        yield "its tables are not those of a journal"
    else:
        least = dict(zip(COUNTED, counts, strict=True)) if counts else {}
        for table in _CHECKED:
            yield from _problems_of(connection, table, least.get(table, 0))


def _problems_of(connection: sqlite3.Connection, table: str, least: int) -> Iterator[str]:
    """Say what is wrong with a table that must hold so many rows."""
    source, columns, key = _CHECKED[table]
    count, last = connection.execute(
        f"SELECT count(*), coalesce(max(rowid), 0) FROM {table}"  # noqa: S608 - constants
    ).fetchone()
    if count < (last := max(last, least)):
        yield f"{last - count} of {last} rows of {table!r} are missing, by what stands beside it"
    differs = f"{table}.crc IS NOT row_sum({columns})"
    tests = {column: f"({test})" for column, test in _tests_of(connection, table)}
    # One pass over a sound table; what is wrong with another is asked for afterwards.
    sql = f"SELECT 1 FROM {source} WHERE {differs} OR {' OR '.join(tests.values())} LIMIT 1"  # noqa: S608 - constants
    if not connection.execute(sql).fetchone():
        return
    sql = f"SELECT {key} FROM {source} WHERE {differs}"  # noqa: S608 - constants
    if changed := connection.execute(sql).fetchall():
        yield f"{len(changed)} of {count} rows of {table!r} were changed, such as {changed[0][0]!r}"
    wrong = ", ".join(f"max({test})" for test in tests.values())
    flags = connection.execute(f"SELECT {wrong} FROM {table}").fetchone()  # noqa: S608 - constants
    for column in (column for column, is_wrong in zip(tests, flags, strict=True) if is_wrong):
        yield f"{table}.{column} holds a value that nobody writes there"


def _tests_of(connection: sqlite3.Connection, table: str) -> Iterator[tuple[str, str]]:
    """Return for each column what is true of a value that nobody writes there.

    By comparisons, a quarter of the time of ``typeof``: in SQLite NULL is neither less nor more
    than anything, a number is less than a text, and a text less than a blob. The plus keeps SQLite
    from converting a value to the column's type first.
    """
    for _, column, kind, not_null, *_ in connection.execute(f"PRAGMA table_info({table})"):
        name = f"+{table}.{column}"
        largest = _LARGEST_OF.get(column, _LARGEST)
        tests = {
            "TEXT": f"{name} < '' OR {name} >= x''",
            "REAL": f"{name} >= {largest!r} OR {name} <= -{largest!r}",
            # Of 1.5 and 'a' the integers are 1 and 0.
            "INTEGER": f"{name} IS NOT ({name} | 0)"
            f" OR {name} >= {largest!r} OR {name} <= -{largest!r}",
        }
        has_value = not_null or column in _NEVER_NULL.get(table, ())
        yield column, tests[kind] + (f" OR {name} IS NULL" if has_value else "")


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [_SPACES.sub("", row[0]) for row in rows]


def _tables_of_schema() -> list[str]:
    with closing(sqlite3.connect(":memory:")) as scratch:
        scratch.executescript(SCHEMA)
        return _tables(scratch)


def _readable(connection: sqlite3.Connection) -> str:
    """Say how many effects can be read, one by one: what cannot may stand between them."""
    sound = count = last = 0
    sql = f"SELECT crc IS row_sum({SUMMED['effect']}) FROM effect WHERE id = ?"  # noqa: S608 - constants
    with suppress(sqlite3.DatabaseError):  # what comes after cannot be reached
        for (number,) in connection.execute("SELECT id FROM effect NOT INDEXED"):
            if number <= last:
                break  # pages that point at one another never end
            last, count = number, count + 1
            with suppress(sqlite3.DatabaseError, TypeError):
                sound += connection.execute(sql, (number,)).fetchone()[0]
    if not count:
        return "no effect can be read"
    return f"{sound} of {count} effects that can be read are as they were written"
