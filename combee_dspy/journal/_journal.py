"""Opens a journal for one process, and writes and looks up the effects and events of a run."""

from __future__ import annotations

import hashlib
import operator
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import orjson
from filelock import Timeout
from pydantic import JsonValue

from combee_dspy.events import CostReserved, Event, encode
from combee_dspy.exceptions import (
    JournalDamagedError,
    JournalError,
    JournalHeldError,
    JournalMismatchError,
)
from combee_dspy.files import check_database, make_folder, open_lock, replace_file
from combee_dspy.journal._holder import Mark
from combee_dspy.journal._integrity import SUMMED, check, row_sum
from combee_dspy.journal._rows import (
    JOURNAL,
    Effect,
    Identity,
    Outcome,
    Outcomes,
    Reader,
    failure_counts,
    open_read_only,
)
from combee_dspy.journal._writer import Statement, Writer, connect, make_tables, whole_file
from combee_dspy.json_texts import dump, sound
from combee_dspy.records import CallUsage, FailureCount


def _numbered(table: str) -> str:
    return ", ".join(f"?{number}" for number in range(1, SUMMED[table].count(",") + 2))


def _insert(table: str) -> str:
    """Return an INSERT of a row with its checksum."""
    places = _numbered(table)
    return (
        f"INSERT OR IGNORE INTO {table}({SUMMED[table]}, crc) VALUES ({places}, row_sum({places}))"  # noqa: S608 - constants
    )


# Defaults of parameters that strategies have no longer: an earlier run that was written with them
# does the same without.
_GONE = re.compile(r", (merge_fan_in=None|balance=True)|(?<=SingleCall\()max_call_tokens=None")

_EFFECT, _EVENT = _insert("effect"), _insert("event")
_USAGE = (
    f"INSERT INTO usage SELECT id, {_numbered('usage')}, row_sum(run, key, {_numbered('usage')})"  # noqa: S608 - constants
    " FROM effect WHERE run = ?11 AND key = ?12"
)
_FIND = f"SELECT {SUMMED['effect']}, crc FROM effect WHERE run = ? AND key = ?"  # noqa: S608 - constants
_usage_row = operator.attrgetter(*SUMMED["usage"].split(", "))
_COLUMNS = SUMMED["effect"].split(", ")  # the run first, the value last
_ERROR = _COLUMNS.index("error")
_effect_row = operator.attrgetter(*_COLUMNS[1:])
_BEGIN = (
    "INSERT INTO run(id, name, state, created, seed, identity, description)"
    " VALUES (?, ?, 'running', ?, ?, ?, ?)"
)
_RUN = f"UPDATE run SET crc = row_sum({SUMMED['run']}) WHERE id = ?"  # noqa: S608 - constants


class Journal:
    """One SQLite file of runs, held by one process.

    What is committed survives the death of the process and of the machine: each commit, of all that
    is waiting at the time, ends with fsync (SQLite's WAL with ``synchronous=FULL``); about 0.4 ms
    on a disk of solid state, shared by the effects in it. A journal in a temporary folder, which
    nobody can go on with, is written without.

    Args:
        folder: Where it lies, as ``journal.sqlite``; ``None`` for a temporary folder that goes with
            :meth:`close`.

    Raises:
        JournalHeldError: Another process writes to it.
        JournalDamagedError: The file is no journal of this format, or is not as it was written.
        JournalError: The folder cannot be written to, or has no room.
        NotPlainFileError: A link or a special file lies where a file of the journal belongs.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="combee-") if folder is None else folder)
        self.path = self.folder / JOURNAL
        try:
            make_folder(self.folder)
            self._lock = open_lock(self.folder / f"{JOURNAL}.lock", blocking=False)
            self._mark = Mark(self.folder / f"{JOURNAL}.holder")
            self._hold()
            try:
                self._prepare()
                self.writer = Writer(self.path, None if self._temporary else self._mark)
            except BaseException:
                self._release()
                raise
        except (OSError, sqlite3.OperationalError) as error:
            problem = f"{self.folder} cannot be written to: {error}"
            raise JournalError(f"{problem}. Make room, or let this user write there.") from error

    def _hold(self) -> None:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise JournalHeldError(str(self.path), self._mark.holder()) from error

    def _release(self) -> None:
        self._mark.close()
        self._lock.release()

    def _prepare(self) -> None:
        check_database(self.path)
        is_begun, mark = False, self._mark.read()[1]
        if self.path.exists():
            with closing(open_read_only(self.path)) as connection:
                is_begun = check(connection, self.path, mark)
        else:
            mark = (0,) * len(mark)  # somebody has removed it
        self._mark.hold(mark)
        # What SQLite would take for a log of the new file is left to SQLite.
        endings = ("", "-wal", "-journal")
        if not any(self.path.with_name(f"{JOURNAL}{ending}").exists() for ending in endings):
            with replace_file(self.path) as file:
                file.write(whole_file())
                file.flush()
                os.fsync(file.fileno())
            is_begun = True
        with closing(connect(self.path, durable=not self._temporary)) as connection:
            if not is_begun:
                make_tables(connection)
            # Here, before anybody else has the file open: later it would have to wait for them.
            connection.execute("PRAGMA journal_mode=WAL")

    def run(
        self,
        name: str,
        seed: int,
        identity: Identity,
        description: Mapping[str, object],
        *,
        only_begins: str = "",
    ) -> RunLog:
        """Begin a run, or go on with the last one of this name.

        Args:
            name: The run's name in this journal.
            seed: The run's seed.
            identity: What it may be resumed with.
            description: What it is, for people: strategies, models by role, digests, settings. JSON
                values.
            only_begins: Why it cannot go on where it has bought anything; empty where it can.

        Raises:
            JournalMismatchError: The last run of this name has another identity, or cannot go on.
            JournalError: It could not be written.
        """
        with Reader(self.path) as reader:
            sql = "SELECT id, identity FROM run WHERE name = ? ORDER BY id DESC LIMIT 1"
            for number, earlier in reader.rows(sql, (name,)):
                differs = self._differs(earlier, identity)
                # A run that was refused before it bought anything binds nobody.
                sql = "SELECT 1 FROM effect WHERE run = ? AND kind IN ('rollout', 'call') LIMIT 1"
                if (differs or only_begins) and reader.rows(sql, (number,)):
                    raise JournalMismatchError(str(self.path), differs or [only_begins])
                if not differs:
                    return self._go_on(number, reader)
            (number,) = reader.rows("SELECT coalesce(max(id), 0) + 1 FROM run")[0]
        texts = dump(dict(identity)), dump(dict(description))
        self._write((_BEGIN, (number, name, time.time(), seed, *texts)), (_RUN, (number,)))
        return RunLog(self, number, resumed=False, keys=())

    def _go_on(self, number: int, reader: Reader) -> RunLog:
        sql = "SELECT key FROM effect WHERE run = ?"
        keys = [key for (key,) in reader.rows(sql, (number,))]
        running = "UPDATE run SET state = 'running', finished = NULL WHERE id = ?"
        self._write((running, (number,)), (_RUN, (number,)))
        return RunLog(self, number, resumed=True, keys=keys)

    def _differs(self, written: str, identity: Identity) -> list[str]:
        before = {what: _GONE.sub("", text) for what, text in orjson.loads(written).items()}
        return [
            f"{what} was {before.get(what, 'not given')} and is {identity.get(what, 'not given')}"
            for what in sorted({*before, *identity})
            if before.get(what) != identity.get(what)
        ]

    def _write(self, *statements: Statement) -> None:
        self.writer.put(statements)
        self.writer.wait()

    def close(self) -> None:
        """Write what is waiting and let go of the file; a temporary folder is removed. May be
        called twice.

        Raises:
            JournalError: Something could not be written.
        """
        try:
            self.writer.close()
        finally:
            self._release()
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)


class RunLog:
    """One run's part of a journal. Lives on the search's event loop.

    Attributes:
        number: The run's id.
        resumed: Whether the run was begun earlier.
    """

    def __init__(
        self, journal: Journal, number: int, *, resumed: bool, keys: Iterable[str]
    ) -> None:
        self.journal = journal
        self.number = number
        self.resumed = resumed
        self._keys = set(keys)
        self._reader = Reader(journal.path)
        self._outcomes = Outcomes(self._reader, number)

    def find(self, key: str) -> dict[str, JsonValue] | None:
        """Return the value of an effect that this run has committed, now or in an earlier part, or
        ``None``.

        Raises:
            JournalDamagedError: The value was changed on disk.
        """
        if key not in self._keys:
            return None
        row = self._reader.rows(_FIND, (self.number, key))[0]
        if row["crc"] != row_sum(*row[:-1]):
            raise JournalDamagedError(
                str(self.journal.path), f"the value of effect {key!r} was changed"
            )
        value: dict[str, JsonValue] = orjson.loads(row["value"])
        return value

    def check_room(self) -> None:
        """Refuse to buy what could not be written.

        Raises:
            JournalError: The disk is full, or nothing can be written any more.
        """
        self.journal.writer.check()
        if (full := self.journal.writer.full) is not None:
            raise JournalError(
                f"{self.journal.path} could not be written: {full}. What was in flight is kept:"
                " make room, and go on with the same log_dir."
            )

    async def keep(self, effect: Effect) -> None:
        """Commit an effect; returns once it is on disk, and only then may it be used.

        Raises:
            JournalError: It could not be written.
        """
        await self.journal.writer.commit(self._statements(effect))
        self._keys.add(effect.key)

    async def written(self) -> None:
        """Return once all that was given before is on disk."""
        await self.journal.writer.commit([])

    def wait(self) -> None:
        """Return once all that was given before is on disk. Blocks the thread that calls it.

        Raises:
            JournalError: It could not be written.
        """
        self.journal.writer.wait()

    def put(self, effect: Effect) -> None:
        """Write an effect that nothing waits for some time soon. From any thread."""
        self.journal.writer.put(self._statements(effect))

    def _statements(self, effect: Effect) -> list[Statement]:
        row = [self.number, *_effect_row(effect)]
        row[-1] = dump(effect.value)
        if effect.error is not None:
            row[_ERROR] = sound(effect.error)
        return [
            (_EFFECT, row),
            *((_USAGE, (*_usage_row(used), self.number, effect.key)) for used in effect.usage),
        ]

    def emit(self, event: Event, *, step: int = -1, component: str = "") -> None:
        """Keep an event. The same event of the same place is kept once, so that a resumed run
        repeats none.

        Args:
            event: See :mod:`combee_dspy.events`.
            step: The update; −1 before the first.
            component: The component it is about, else empty.
        """
        text = encode(event)
        digest = (
            ""
            if event.single
            else hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        )
        key = f"{event.kind}/{step}/{component}/{digest}"
        self.journal.writer.put([self._event(key, event.kind, text, step, component)])

    async def promise(self, event: CostReserved) -> None:
        """Commit what an effect may cost before it is sent, so that a run that is killed meanwhile
        knows it.

        Raises:
            JournalError: It could not be written.
        """
        key = f"{event.kind}/{event.effect}/{time.time_ns()}"
        await self.journal.writer.commit([self._event(key, event.kind, encode(event))])

    def _event(
        self, key: str, kind: str, data: str, step: int = -1, component: str = ""
    ) -> Statement:
        return _EVENT, (self.number, key, step, component, kind, time.time(), data)

    def usage(self) -> tuple[CallUsage, ...]:
        """Return what all parts of the run have spent so far, by role and model, as far as it is
        committed.
        """
        rows = self._reader.rows(
            "SELECT u.role, u.model, sum(u.calls), sum(u.errors), sum(u.cached),"
            " sum(u.prompt_tokens), sum(u.completion_tokens), CASE WHEN count(u.dollars) = count(*)"
            " THEN sum(u.dollars) END, CASE WHEN count(u.gpu_seconds) THEN sum(u.gpu_seconds) END,"
            " sum(u.seconds) FROM usage u JOIN effect e ON e.id = u.effect WHERE e.run = ? GROUP BY"
            " u.role, u.model ORDER BY 1, 2",
            (self.number,),
        )
        return tuple(CallUsage(*row) for row in rows)

    def outcomes(self, step: int) -> list[Outcome]:
        """Return how the effects of updates up to ``step`` have ended, as far as they are
        committed.
        """
        return self._outcomes.upto(step=step)

    def failures(self) -> tuple[FailureCount, ...]:
        """Return what has failed in all parts of the run so far, those of the held-out set
        included.
        """
        return failure_counts(self._outcomes.upto())

    def rollouts(self, kind: str = "rollout") -> int:
        """Return the rollouts of all parts of the run, those of the held-out set left out; of kind
        ``"recorded"`` those that happened elsewhere.
        """
        sql = "SELECT count(*) FROM effect WHERE run = ? AND kind = ? AND purpose != 'heldout'"
        return int(self._reader.rows(sql, (self.number, kind))[0][0])

    async def finish(self, state: str, result: Mapping[str, object]) -> None:
        """Say how the run ended: ``"finished"``, ``"failed"`` or ``"interrupted"``, with its
        result, JSON values. All is then on disk.

        Raises:
            JournalError: It could not be written.
        """
        sql = "UPDATE run SET state = ?, finished = ?, result = ? WHERE id = ?"
        row = (state, time.time(), dump(dict(result)), self.number)
        await self.journal.writer.commit([(sql, row), (_RUN, (self.number,))])

    def close(self) -> None:
        """Close the connection that looks effects up."""
        self._reader.close()
