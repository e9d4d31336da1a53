"""The journal: opened by one process at a time, written by one thread, looked up before anything is bought."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from combee_dspy.exceptions import JournalDamagedError, JournalHeldError, JournalMismatchError
from combee_dspy.journal._rows import (
    JOURNAL,
    SCHEMA,
    VERSION,
    Effect,
    Identity,
    Outcome,
    Reader,
    checksum,
    dump,
    failure_counts,
    outcomes,
    sound,
)
from combee_dspy.journal._writer import Statement, Writer, connect
from combee_dspy.records import CallUsage, FailureCount

__all__ = ["Journal", "RunLog"]

_EFFECT = (
    "INSERT OR IGNORE INTO effect(run, key, kind, role, purpose, step, component, candidate, example, split, replicate,"
    " score, error, failed_in, started, ended, queued, value, crc)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_VALUES = "SELECT id, key, value, crc FROM effect WHERE run = ? AND id > ? ORDER BY id LIMIT 512"
_USAGE = "INSERT INTO usage SELECT id, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM effect WHERE run = ? AND key = ?"
_EVENT = "INSERT OR IGNORE INTO event(run, key, step, component, kind, at, data) VALUES (?, ?, ?, ?, ?, ?, ?)"


class Journal:
    """One SQLite file of runs, held by one process.

    Args:
        folder: Where it lies, as ``journal.sqlite``; ``None`` for a temporary folder that goes with :meth:`close`.

    Raises:
        JournalHeldError: Another process writes to it.
        JournalDamagedError: The file is no journal of this format, or fails SQLite's own check.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="combee-") if folder is None else folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / JOURNAL
        self._lock = self._held()
        try:
            self._prepare()
        except BaseException:
            self._lock.release()
            raise
        self.writer = Writer(self.path)

    def _held(self) -> FileLock:
        lock = FileLock(f"{self.path}.lock", blocking=False)
        note = self.folder / f"{JOURNAL}.holder"
        try:
            lock.acquire()
        except Timeout as error:
            holder = note.read_text() if note.is_file() else "another process"
            raise JournalHeldError(str(self.path), holder) from error
        note.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        return lock

    def _prepare(self) -> None:
        try:
            connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            try:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if not tables:
                    connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
                elif version != VERSION:
                    raise JournalDamagedError(str(self.path), f"its format is {version}, not {VERSION}")
                elif (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise JournalDamagedError(str(self.path), f"{found}; {_readable(connection)}")
                # Here, before anybody else has the file open: later it would have to wait for them.
                connection.execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()
        except sqlite3.DatabaseError as error:
            raise JournalDamagedError(str(self.path), f"{error}; nothing of it can be read") from error

    def run(
        self, name: str, seed: int, identity: Identity, description: Mapping[str, Any], *, only_begins: str = ""
    ) -> RunLog:
        """Begin a run, or go on with the last one of this name.

        Args:
            name: The run's name in this journal.
            seed: The run's seed.
            identity: What it may be resumed with.
            description: What it is, for people: strategies, models by role, digests, settings. JSON values.
            only_begins: Why it cannot go on where it has bought anything; empty where it can.

        Raises:
            JournalMismatchError: The last run of this name has another identity, or cannot go on.
            JournalDamagedError: A value of an effect was changed on disk.
        """
        with Reader(self.path) as reader:
            found = reader.rows("SELECT id, identity FROM run WHERE name = ? ORDER BY id DESC LIMIT 1", (name,))
            number = found[0]["id"] if found else 0
            differs = self._differs(name, found[0]["identity"], identity) if found else ["there is no run"]
            # A run that was refused before it bought anything binds nobody.
            bought = "SELECT 1 FROM effect WHERE run = ? AND kind IN ('rollout', 'call') LIMIT 1"
            if (differs or only_begins) and found and reader.rows(bought, (number,)):
                raise JournalMismatchError(str(self.path), differs or [only_begins])
            if differs:
                number = reader.rows("SELECT coalesce(max(id), 0) + 1 FROM run")[0][0]
                row = (number, name, "running", time.time(), seed, dump(dict(identity)), dump(dict(description)))
                sql = "INSERT INTO run(id, name, state, created, seed, identity, description) VALUES (?,?,?,?,?,?,?)"
                self._write_now(sql, row)
                return RunLog(self, number, resumed=False, known=())
            # Before anything is written: what was changed on disk must stay as it is for whoever looks into it.
            known = list(_checked(reader, number))
            self._write_now("UPDATE run SET state = 'running', finished = NULL WHERE id = ?", (number,))
        return RunLog(self, number, resumed=True, known=known)

    def _differs(self, name: str, written: str, identity: Identity) -> list[str]:
        try:
            before = orjson.loads(written)
        except orjson.JSONDecodeError as error:
            raise JournalDamagedError(str(self.path), f"the identity of run {name!r} was changed") from error
        return [
            f"{what} was {before.get(what, 'not given')} and is {identity.get(what, 'not given')}"
            for what in sorted({*before, *identity})
            if before.get(what) != identity.get(what)
        ]

    def _write_now(self, sql: str, parameters: tuple[Any, ...]) -> None:
        connection = connect(self.path)
        try:
            connection.execute(sql, parameters)
        finally:
            connection.close()

    def close(self) -> None:
        """Write what is waiting and let go of the file; a temporary folder is removed. May be called twice.

        Raises:
            JournalError: Something could not be written.
        """
        try:
            self.writer.close()
        finally:
            self._lock.release()
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)


class RunLog:
    """One run's part of a journal. Lives on the search's event loop.

    Attributes:
        number: The run's id.
        resumed: Whether the run was begun earlier.
    """

    def __init__(self, journal: Journal, number: int, *, resumed: bool, known: Iterable[str]) -> None:
        self.journal = journal
        self.number = number
        self.resumed = resumed
        self._known = set(known)
        self._reader = Reader(journal.path)

    def find(self, key: str) -> Any | None:
        """Return the value of an effect that this run has committed, now or in an earlier part, or ``None``.

        Raises:
            JournalDamagedError: The value was changed on disk.
        """
        if key not in self._known:
            return None
        row = self._reader.rows("SELECT value, crc FROM effect WHERE run = ? AND key = ?", (self.number, key))[0]
        _unchanged(self.journal.path, key, row["value"], row["crc"])
        return orjson.loads(row["value"])

    async def keep(self, effect: Effect) -> None:
        """Commit an effect; returns once it is on disk, and only then may it be used.

        Raises:
            JournalError: It could not be written.
        """
        await self.journal.writer.commit(self._statements(effect))
        self._known.add(effect.key)

    def put(self, effect: Effect) -> None:
        """Write an effect that nothing waits for some time soon. From any thread."""
        self.journal.writer.put(self._statements(effect))

    def _statements(self, effect: Effect) -> list[Statement]:
        value = dump(effect.value)
        row = (
            self.number, effect.key, effect.kind, effect.role, effect.purpose, effect.step, effect.component,
            effect.candidate, effect.example, effect.split, effect.replicate, effect.score,
            None if effect.error is None else sound(effect.error), effect.failed_in, effect.started, effect.ended,
            effect.queued, value, checksum(effect.key, value),
        )  # fmt: skip
        return [(_EFFECT, row), *((_USAGE, (*_columns(one), self.number, effect.key)) for one in effect.usage)]

    def emit(
        self, kind: str, data: Mapping[str, Any], *, step: int = -1, component: str = "", single: bool = False
    ) -> None:
        """Keep an event. The same event of the same place is kept once, so that a resumed run repeats none.

        Args:
            kind: See :mod:`combee_dspy.journal`.
            data: JSON values.
            step: The update; −1 before the first.
            component: The component it is about, else empty.
            single: Whether a place has one event of this kind, whatever its data, such as times of the clock.
        """
        text = dump(data)
        digest = "" if single else hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        key = f"{kind}/{step}/{component}/{digest}"
        row = (self.number, key, step, component, kind, time.time(), text)
        self.journal.writer.put([(_EVENT, row)])

    def usage(self) -> tuple[CallUsage, ...]:
        """Return what all parts of the run have spent so far, by role and model, as far as it is committed."""
        rows = self._reader.rows(
            "SELECT u.role, u.model, sum(u.calls), sum(u.errors), sum(u.cached), sum(u.prompt_tokens),"
            " sum(u.completion_tokens), CASE WHEN count(u.dollars) = count(*) THEN sum(u.dollars) END,"
            " CASE WHEN count(u.gpu_seconds) THEN sum(u.gpu_seconds) END, sum(u.seconds)"
            " FROM usage u JOIN effect e ON e.id = u.effect WHERE e.run = ? GROUP BY u.role, u.model ORDER BY 1, 2",
            (self.number,),
        )
        return tuple(CallUsage(*row) for row in rows)

    def outcomes(self, step: int) -> list[Outcome]:
        """Return how the effects of updates up to ``step`` have ended, as far as they are committed."""
        return outcomes(self._reader, self.number, step=step)

    def failures(self) -> tuple[FailureCount, ...]:
        """Return what has failed in all parts of the run so far, those of the held-out set included."""
        return failure_counts(outcomes(self._reader, self.number))

    def rollouts(self) -> int:
        """Return the rollouts of all parts of the run, those of the held-out set left out."""
        sql = "SELECT count(*) FROM effect WHERE run = ? AND kind = 'rollout' AND purpose != 'heldout'"
        return int(self._reader.rows(sql, (self.number,))[0][0])

    async def finish(self, state: str, result: Mapping[str, Any]) -> None:
        """Say how the run ended: ``"finished"`` or ``"failed"``, with its result, JSON values. All is then on disk.

        Raises:
            JournalError: It could not be written.
        """
        sql = "UPDATE run SET state = ?, finished = ?, result = ? WHERE id = ?"
        await self.journal.writer.commit([(sql, (state, time.time(), dump(dict(result)), self.number))])

    def close(self) -> None:
        """Close the connection that looks effects up."""
        self._reader.close()


def _checked(reader: Reader, run: int) -> Iterator[str]:
    """Yield the keys of a run's effects, whose values are as they were written; few are in memory at a time.

    Raises:
        JournalDamagedError: One is not.
    """
    last = 0
    while found := reader.rows(_VALUES, (run, last)):
        yield from (_unchanged(reader.path, key, value, crc) for _, key, value, crc in found)
        last = found[-1]["id"]


def _unchanged(path: Path, key: str, value: str, crc: int) -> str:
    """Return the key of an effect whose value is as it was written.

    Raises:
        JournalDamagedError: It is not.
    """
    if crc != checksum(key, value):
        raise JournalDamagedError(str(path), f"the value of effect {key!r} was changed")
    return key


def _columns(usage: CallUsage) -> tuple[Any, ...]:
    return (
        usage.role, usage.model, usage.calls, usage.errors, usage.cached, usage.prompt_tokens,
        usage.completion_tokens, usage.dollars, usage.gpu_seconds, usage.seconds,
    )  # fmt: skip


def _readable(connection: sqlite3.Connection) -> str:
    try:
        count = connection.execute("SELECT count(*) FROM effect").fetchone()[0]
    except sqlite3.DatabaseError:
        return "its effects cannot be read"
    return f"{count} effects can still be read"
