"""Reads the rows of a journal from any thread or process, and changes nothing."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from combee_dspy.exceptions import (
    ArgumentValueError,
    JournalDamagedError,
    JournalEmptyError,
    JournalError,
    NotPlainFileError,
    did_you_mean,
)
from combee_dspy.files import check_database
from combee_dspy.journal._checked import check_once, is_remembered
from combee_dspy.journal._holder import Mark
from combee_dspy.journal._integrity import SUMMED
from combee_dspy.records import CallUsage, Cause, FailedCall, FailureCount, Role

Identity = Mapping[str, str]
"""What a run may be resumed with: a hash or a short text by what it is of (``program``,
``trainset``, …).
"""


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that was bought or decided.

    Attributes:
        key: Its place in the run; the same place is never bought twice.
        kind: ``"rollout"``, ``"call"``, ``"feedback"``, ``"decision"`` or ``"probe"``;
            ``"recorded"``: a rollout that happened elsewhere and is read here; ``"failed"``: what
            came to nothing, and cost something all the same.
        value: What it returned, JSON values.
        role: Whom it was for, where one role is meant.
        purpose: What a rollout was for (``"train"``, ``"screen"``, ``"validation"``,
            ``"heldout"``, ``"calibration"``, ``"serving"``, ``"shadow"``); the signature's name of
            a call; of other work ``"feedback"``, ``"proposal"`` or ``"probe"``.
        step: The update; −1 before the first.
        component: The component it was about, else empty.
        candidate: The candidate's id, else empty.
        example: The row's hash, of a recorded rollout its trace's id; else empty.
        split: ``"train"``, ``"validation"`` or ``"heldout"``, else empty.
        replicate: Which draw of a rollout.
        score: A rollout's score.
        error: What it failed with, else ``None``.
        failed_in: Where it failed, else ``None``.
        started: Unix time at which it began.
        ended: Unix time at which it ended.
        queued: Seconds it waited for a slot.
        usage: Its LM calls, attempts that were repeated included.
    """

    key: str
    kind: str
    value: Any
    role: Role | None = None
    purpose: str = ""
    step: int = -1
    component: str = ""
    candidate: str = ""
    example: str = ""
    split: str = ""
    replicate: int = 0
    score: float | None = None
    error: str | None = None
    failed_in: str | None = None
    started: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    usage: tuple[CallUsage, ...] = ()


JOURNAL = "journal.sqlite"
"""Name of a journal in a ``log_dir``."""


def journal_file(place: Path | str) -> Path:
    """Return the journal's file of a ``log_dir``, or the file itself; of a folder above it where
    there is no other.

    Raises:
        ArgumentValueError: There is none, or there are several.
        NotPlainFileError: It is a link or a special file.
    """
    path = Path(place)
    file = path / JOURNAL if path.is_dir() else path
    check_database(file, in_place=False)
    if path.is_dir() and not file.is_file() and (below := sorted(path.rglob(JOURNAL))):
        if len(below) > 1:
            listed = ", ".join(str(journal.parent) for journal in below)
            raise ArgumentValueError(
                "journal", str(place), "holds several journals", f"Give one of {listed}."
            )
        return below[0]
    if not file.is_file():
        beside = (journal.parent.name for journal in path.parent.glob(f"*/{JOURNAL}"))
        remedy = f"{did_you_mean(path.name, beside)}Give the folder of a run."
        raise ArgumentValueError("log_dir", str(place), "holds no run", remedy)
    return file


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that changes nothing of a file, not even by closing it.

    Raises:
        NotPlainFileError: The file, or one that SQLite keeps beside it, is no plain file.
    """
    check_database(path, in_place=False)
    # SQLite writes beside what it reads, unless told that nobody can write there: what is not in
    # the file is lost then.
    mode = "mode=ro" if os.access(path.parent, os.W_OK) or _has_log(path) else "immutable=1"
    address = f"file:{quote(str(path.resolve()))}?{mode}"
    return sqlite3.connect(address, uri=True, timeout=30, check_same_thread=False)


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.is_file() and log.stat().st_size > 0


_NARROW = SUMMED["effect"].removesuffix(", value")

# What SQLite says of content that no journal holds, where the SELECT is right.
_DAMAGE = ("decode to UTF-8", "malformed JSON", "JSON path", "string or blob too big")


class Reader:
    """A read-only connection to a journal. Not for several threads at once; each makes its own.

    Args:
        path: The file.
        checked: Whether every row must have been looked at, as in a folder that somebody else has
            written: now, or before if not a bit of the file has changed since.
        many: Whether many SELECTs read all effects, as they are now: ``effect`` is then a copy
            without what they returned, an eighth of the bytes. What they returned is in
            ``main.effect``.

    Raises:
        JournalDamagedError: It is no journal, or is not as it was written.
        JournalEmptyError: Its run was stopped before it began.
        NotPlainFileError: A link or a special file lies where one of its files belongs.
    """

    def __init__(self, path: Path, *, checked: bool = False, many: bool = False) -> None:
        self.path = path
        self._connection = open_read_only(path)
        self._connection.row_factory = sqlite3.Row
        try:
            counts = Mark(path.with_name(f"{path.name}.holder")).read()[1]
            if checked:
                check_once(self._connection, path, counts)
            if not any(counts) and not self.rows("SELECT 1 FROM sqlite_master LIMIT 1"):
                raise JournalEmptyError(str(path))
            self.rows("SELECT id FROM run LIMIT 1")
            if many:
                self.rows(f"CREATE TEMP TABLE effect(id INTEGER PRIMARY KEY, {_NARROW})")
                self.rows(f"INSERT INTO temp.effect SELECT id, {_NARROW} FROM main.effect")  # noqa: S608 - constants
        except BaseException:
            self.close()
            raise

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Return the rows of a SELECT.

        Raises:
            JournalDamagedError: The file cannot be read as a journal.
            JournalError: No room is left for what SQLite sorts.
            sqlite3.OperationalError: The SELECT is wrong.
        """
        return list(self.stream(sql, parameters))

    def stream(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[sqlite3.Row]:
        """Return the rows of a SELECT one by one, so that memory stays flat.

        Raises:
            JournalDamagedError: The file cannot be read as a journal.
            JournalError: No room is left for what SQLite sorts.
            sqlite3.OperationalError: The SELECT is wrong.
        """
        try:
            yield from self._connection.execute(sql, parameters)
        except sqlite3.OperationalError as error:
            if "no such table: run" in str(error):
                raise JournalDamagedError(str(self.path), "it has no table of runs") from error
            if any(sign in str(error) for sign in _DAMAGE):
                raise JournalDamagedError(str(self.path), str(error)) from error
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                problem = f"{self.path} cannot be read: {error}"
                raise JournalError(f"{problem}. Make room in the temporary folder.") from error
            raise
        except sqlite3.DatabaseError as error:
            raise JournalDamagedError(str(self.path), str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_ended(path: Path) -> None:
    """Check a large journal whose run has ended, so that its first reading takes a digest of it.

    Whoever reads it is told what is wrong with it.
    """
    with suppress(OSError, JournalError, NotPlainFileError):
        if is_remembered(path):
            Reader(path, checked=True).close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many effects of a kind ended alike for one candidate.

    Attributes:
        kind: Such as ``"validation rollouts"`` or ``"proposer calls"``.
        candidate: The candidate's id; empty for none.
        role: Who is to blame, or whom the effects were for.
        cause: Why they failed; ``None`` where all is well.
        number: How many.
        error: The first error; ``None`` where all is well.
    """

    kind: str
    candidate: str
    role: Role
    cause: Cause | None
    number: int
    error: str | None


# A proposer or a metric of the user's that failed says so in its value.
_ENDED = """
SELECT step, kind, split, purpose, role, candidate, failed_in,
    CASE WHEN kind <> 'rollout' AND error IS NULL THEN
        (SELECT json_extract(value, '$.value.error') FROM main.effect WHERE id = e.id)
        ELSE error END,
    CASE WHEN key GLOB 'call/*/read/*' AND error IS NOT NULL THEN key END, count(*)
FROM effect e WHERE +run = ? AND kind IN ('rollout', 'call', 'feedback')
    AND id > ? AND id <= ? GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY min(id)"""
# The halves of a reading call have the numbers 0 and 1 below its place.
_HALVES = """
SELECT 1 FROM main.effect WHERE run = ? AND key BETWEEN ? || '/0/' AND ? || '/1/~' LIMIT 1"""


_Alike = tuple[str, str, Role, Cause | None]


class Outcomes:
    """How a run's rollouts, LM calls and feedback ended. Each effect is read once.

    A call that was too long and is read again in halves is left out: nothing of it is lost.

    Args:
        reader: Of the journal. Borrowed.
        run: The run's number.
    """

    def __init__(self, reader: Reader, run: int) -> None:
        self._reader, self._run, self._last = reader, run, 0
        self._by_step: dict[tuple[int, _Alike], Outcome] = {}
        self._too_long: list[tuple[str, tuple[int, _Alike], Outcome]] = []  # each with its place

    def upto(self, last: int = sys.maxsize, *, step: int = sys.maxsize) -> list[Outcome]:
        """Return the outcomes of effects up to a number, of updates up to ``step``."""
        self._read(min(last, self._reader.rows("SELECT coalesce(max(id), 0) FROM effect")[0][0]))
        self._too_long = [call for call in self._too_long if not self._is_halved(call[0])]
        alike: dict[_Alike, Outcome] = {}
        lost = ((key, outcome) for _, key, outcome in self._too_long)
        for (of_step, key), outcome in (*self._by_step.items(), *lost):
            if of_step <= step:
                first = alike.get(key, replace(outcome, number=0))
                alike[key] = replace(first, number=first.number + outcome.number)
        return list(alike.values())

    def _read(self, last: int) -> None:
        rows = self._reader.rows(_ENDED, (self._run, self._last, last))
        self._last = last
        for step, kind, split, purpose, role, candidate, failed_in, error, call, number in rows:
            name = f"{role} {'calls' if kind == 'call' else 'feedback'}"
            if kind == "rollout":
                name = f"{split.replace('heldout', 'held-out')} rollouts"
            elif purpose == "RelateLessons":
                name = "comparisons"
            blamed: Role = "evaluator" if failed_in == "metric" else role
            cause = None if error is None else _cause_of(error, blamed, failed_in)
            key = (name, candidate, blamed, cause)
            if call is not None and FailedCall(error).too_long:
                place = call.rsplit("/", 2)[0]  # before role and digest
                self._too_long.append((place, (step, key), Outcome(*key, number, error)))
                continue
            first = self._by_step.get((step, key), Outcome(*key, 0, error))
            self._by_step[step, key] = replace(first, number=first.number + number)

    def _is_halved(self, place: str) -> bool:
        return bool(self._reader.rows(_HALVES, (self._run, place, place)))


def outcomes(reader: Reader, run: int) -> list[Outcome]:
    """Return how a run's rollouts, LM calls and feedback ended."""
    return Outcomes(reader, run).upto()


def _cause_of(error: str, role: Role, failed_in: str | None) -> Cause:
    kind, colon, _ = error.partition(":")
    if role == "evaluator":
        return "unscored"
    if failed_in == "answer" or kind.startswith("AdapterParseError"):
        return "unparsed"
    if colon and "timeout" in kind.lower():
        return "timed out"
    return "refused" if failed_in == "service" or kind.startswith("LM") else "raised"


def failure_counts(items: Iterable[Outcome]) -> tuple[FailureCount, ...]:
    """Return the failures among outcomes by kind, role and cause, the first ones in front."""
    total: Counter[str] = Counter()
    failed: Counter[tuple[str, Role, Cause]] = Counter()
    errors: dict[tuple[str, Role, Cause], str] = {}
    for outcome in items:
        total[outcome.kind] += outcome.number
        if outcome.cause is not None and outcome.error is not None:
            key = (outcome.kind, outcome.role, outcome.cause)
            failed[key] += outcome.number
            errors.setdefault(key, outcome.error)
    return tuple(
        FailureCount(*key, count, total[key[0]], errors[key]) for key, count in failed.items()
    )
