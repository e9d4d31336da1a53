"""The journal: every rollout and every event of a run, on this machine, before anything follows from it.

A folder holds one file per process that ran the run, ``journal-0001.jsonl`` and
so on, with one JSON object a line: ``kind`` says what it is, ``at`` is seconds
since 1970. The first line of a file is of kind ``journal``, a rollout is of
kind ``rollout`` with the fields of :class:`combee_dspy.tracking.Row`, every
other event has its class name and its fields under ``data``, and the last line
of a process that ended in order is of kind ``end``.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from combee_dspy import events
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import CallUsage
from combee_dspy.tracking._codec import encode
from combee_dspy.tracking._provenance import provenance
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._rows import Inputs, data_of

__all__ = [
    "FORMAT",
    "JOURNAL_FOLDER",
    "Entry",
    "Journal",
    "Tail",
    "entries_of",
    "files_of",
    "find_journal",
    "new_folder",
    "read_at",
]

_logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the layout. A reader refuses a newer one."""

JOURNAL_FOLDER = "journal"
"""Where a journal lies in a ``log_dir``."""

STEPS = 200
"""Rollouts of a process whose predictor calls are kept for traces: errors, and the first two of each kind."""


def _as_data(value: Any) -> Any:
    # Events are plain by now: records are left in a rollout's usage alone.
    return asdict(value) if isinstance(value, CallUsage) else str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_as_data)
_EACH_KIND = 2
_PATTERN = "journal-*.jsonl"
_READ = 1 << 18

# What a run cannot do without after a power cut is on the disk before it goes on.
_SYNCED = (events.RunStarted, events.IterationFinished, events.RunFinished)


class Journal:
    """Writes what one process of a run does. Thread-safe.

    A line reaches the operating system before :meth:`record` returns, so it
    outlives the process; it reaches the disk at the end of each iteration. A
    full disk is reported once and does not stop the run; the lines that did
    not fit are lost, and said to be.

    Args:
        folder: Where the files lie; made where it is missing. A folder with a
            journal is continued in a new file, under the run's old id.
        secrets: Keys to keep out of what is written, beside those that the process is known to have.
        clock: Seconds since 1970.

    Raises:
        ArgumentValueError: The folder cannot be written to.

    Attributes:
        folder: As given.
        run_id: The run's id: when it began, and eight random digits.
        file: The file of this process.
    """

    def __init__(self, folder: Path, *, secrets: Iterable[str] = (), clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._secrets = frozenset(secrets)
        self._redactor = Redactor(self._secrets)
        self._inputs = Inputs(self._redactor)
        self._lock = threading.Lock()
        self._roles: Mapping[str, str] = {}
        self._schedule = ""
        self._seen: dict[tuple[int, str], int] = {}
        self._steps = 0
        self._lost = 0
        self._torn = False
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.run_id = _run_id(folder, clock())
            self._parents = _parents_in(folder)
            self.file, self._process, self._descriptor = _open_next(folder)
        except OSError as error:
            remedy = "Give a log_dir, or a tracker's spool, on a disk that can be written. Nothing was spent."
            raise ArgumentValueError("journal", str(folder), f"cannot be written: {error}", remedy) from error
        self._put({"kind": "journal", "format": FORMAT, "run_id": self.run_id, "process": self._process})
        self._put({"kind": "provenance", "data": provenance()})

    def record(self, event: events.Event) -> None:
        """Write one event. Never raises for what the event holds, or for a disk that is full."""
        with self._lock:
            if self._closed:
                return
            if isinstance(event, events.RolloutFinished):
                self._put(self._rollout(event))
                return
            self._hear(event)
            self._put({"kind": type(event).__name__, "data": encode(event, self._redactor)})
            if isinstance(event, _SYNCED):
                self._sync()

    def keep_out(self, secrets: Iterable[str]) -> None:
        """Keep further keys out of what is written from now on."""
        with self._lock:
            if not self._secrets.issuperset(secrets := frozenset(secrets)):
                self._secrets |= secrets
                self._redactor = Redactor(self._secrets)
                self._inputs = Inputs(self._redactor)

    def close(self) -> None:
        """Say that this process has ended in order, and close the file. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._put({"kind": "end", "lost": self._lost})
            self._sync()
            self._closed = True
            os.close(self._descriptor)
            if self._lost:
                _logger.warning("The journal %s lacks %d lines that could not be written.", self.file, self._lost)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            self._roles = {role: self._redactor.text(str(model)) for role, model in event.models.items()}
        elif isinstance(event, events.CandidateProposed):
            self._parents[event.candidate_id] = event.parents
        elif isinstance(event, events.ScheduleDecided):
            self._schedule = event.schedule_id

    def _rollout(self, event: events.RolloutFinished) -> dict[str, Any]:
        data = data_of(
            event,
            self._redactor,
            run_id=self.run_id,
            serial=f"{self._process}.{event.rollout_id}",
            roles=self._roles,
            parents=self._parents.get(event.candidate_id, ()),
            with_steps=self._wants_steps(event),
            inputs=self._inputs,
        )
        if not event.cached:
            # What was run under a schedule that does not name itself ran under its latest decision.
            data["schedule_id"] = data["schedule_id"] or self._schedule
        return data

    def _wants_steps(self, event: events.RolloutFinished) -> bool:
        place = (event.iteration, event.purpose)
        count = self._seen[place] = self._seen.get(place, 0) + 1
        wanted = bool(event.rollout.trace) and self._steps < STEPS
        if wanted and (event.rollout.error is not None or count <= _EACH_KIND):
            self._steps += 1
            return True
        return False

    def _put(self, line: dict[str, Any]) -> None:
        line["at"] = round(self._clock(), 3)
        content = _line_of(line) + b"\n"
        if self._torn:
            # The rest of a line that did not fit must not run into this one.
            content = b"\n" + content
        try:
            written = os.write(self._descriptor, content)
        except OSError as error:
            self._miss(str(error))
            return
        self._torn = written < len(content)
        if self._torn:
            self._miss(f"only {written} of {len(content)} bytes fitted")

    def _miss(self, reason: str) -> None:
        if not self._lost:
            _logger.warning("The journal %s cannot be written, and the run goes on: %s", self.file, reason)
        self._lost += 1

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            _logger.debug("fsync of %s: %s", self.file, error)


class Entry(NamedTuple):
    """One line of a journal. A tuple: one is made of every line that is read.

    Attributes:
        file: The file's name.
        number: The line's number in its file, from 1.
        offset: Where it begins, in bytes.
        data: What it says.
    """

    file: str
    number: int
    offset: int
    data: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What it is."""
        return str(self.data.get("kind", ""))


def files_of(folder: Path) -> list[Path]:
    """Return a journal's files in the order in which the run's processes wrote them."""
    return sorted(folder.glob(_PATTERN), key=lambda path: (len(path.name), path.name))


def find_journal(folder: Path) -> Path:
    """Return the folder that holds a journal: the one given, or ``journal`` in it.

    Raises:
        ArgumentValueError: Neither does.
    """
    for place in (folder, folder / JOURNAL_FOLDER):
        if files_of(place):
            return place
    remedy = "Give the run's log_dir, or the folder that the warning at the run's end named."
    raise ArgumentValueError("path", str(folder), "holds no journal of a run", remedy)


def entries_of(folder: Path) -> Iterator[Entry]:
    """Return every whole line of a journal, in order. A line that a killed process left unfinished is passed over."""
    for file in files_of(folder):
        yield from Tail(file).read(final=True)


class Tail:
    """Reads a file's lines as they come. Not thread-safe.

    Args:
        file: The file; it may still grow.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._offset = 0
        self._number = 0

    def read(self, *, final: bool = False) -> Iterator[Entry]:
        """Return the lines since the last call.

        Args:
            final: Whether nobody writes any more. Else a last line without its end is left for the next call.

        Raises:
            ArgumentValueError: The file has a newer layout than this version knows.
        """
        name = self.file.name
        # Each read lets go of the GIL, which is a wait among the threads of a run: there are to be few.
        with self.file.open("rb", buffering=_READ) as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n") and not final:
                    return
                offset = self._offset
                self._offset += len(line)
                self._number += 1
                data = _parsed(line)
                if data is not None:
                    yield Entry(name, self._number, offset, data)


def read_at(folder: Path, file: str, offset: int) -> Mapping[str, Any] | None:
    """Return what the line at a place says; ``None`` where it says nothing."""
    with (folder / file).open("rb") as stream:
        stream.seek(offset)
        return _parsed(stream.readline())


def _line_of(data: Mapping[str, Any]) -> bytes:
    if data["kind"] == "rollout":
        try:
            # Several times as fast. It writes null for NaN, which of a rollout's figures the score alone may be.
            return orjson.dumps(data, default=str)
        except TypeError:
            _logger.debug("a rollout holds what orjson does not write")
    return _ENCODER.encode(data).encode("utf-8", "replace")


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        data = orjson.loads(line)
    except ValueError:
        # NaN is JSON to Python's own reader and writer only.
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            return None
    if not isinstance(data, dict):
        return None
    if data.get("kind") == "journal" and int(data.get("format") or 0) > FORMAT:
        remedy = "Read it with the version of combee-dspy that wrote it, or a newer one."
        raise ArgumentValueError("path", data.get("format"), "is a journal's layout that is not known here", remedy)
    return data


def new_folder(spool: Path) -> Path:
    """Return a folder for a new run's journal under ``spool``. Nothing is made yet."""
    return spool / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


def _run_id(folder: Path, now: float) -> str:
    for file in files_of(folder):
        for entry in Tail(file).read(final=True):
            if entry.kind == "journal" and isinstance(entry.data.get("run_id"), str):
                return str(entry.data["run_id"])
            break
    # Not from the run's seed: two runs with one seed are two runs.
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(4)}"


def _parents_in(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the parents that earlier processes told of: their candidates run on in a run that is taken up again."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries_of(folder):
        told = entry.data.get("data")
        if entry.kind == events.CandidateProposed.__name__ and isinstance(told, dict):
            above = told.get("parent_ids") or [told.get("parent_id", "")]
            found[str(told.get("candidate_id", ""))] = tuple(map(str, above))
    return found


def _open_next(folder: Path) -> tuple[Path, int, int]:
    number = len(files_of(folder)) + 1
    while True:
        file = folder / f"journal-{number:04d}.jsonl"
        try:
            return file, number, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            # Another process was quicker.
            number += 1
