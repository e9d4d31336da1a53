"""Every candidate of a run, written down as it comes to be.

One file, ``candidates.jsonl`` in the run's ``log_dir``: one JSON object a line,
forced to disk before the run goes on, so that a killed run loses none. Runs that
resume append to it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from combee_dspy.engine.candidates import candidate_id
from combee_dspy.events import (
    CandidateAccepted,
    CandidateProposed,
    CandidateRefused,
    CandidateRejected,
    CandidateScreened,
    Event,
    IterationFinished,
    RunFinished,
    RunStarted,
    ValidationFinished,
)
from combee_dspy.lms.redact import scrub

__all__ = ["FILE", "Lineage", "Recorders", "read_lines"]

logger = logging.getLogger("combee_dspy")

FILE = "candidates.jsonl"


class Lineage:
    """Writes what happens to candidates into a run's directory. A recorder of the event bus; thread-safe.

    Args:
        log_dir: The directory; made with the first line.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._path = Path(log_dir) / FILE
        self._file: Any = None
        self._lock = threading.Lock()
        self._broken = False

    def record(self, event: Event) -> None:
        """Write one line, where the event is about a candidate. Never raises: a full disk is said once."""
        tell = _LINES.get(type(event))
        if tell is None:
            return
        name, values = tell(event)
        if "reason" in values:
            # An LM or an error may have said it. Texts stay as they are: a candidate's id is their hash.
            values["reason"] = scrub(str(values["reason"]))
        line = json.dumps({"event": name, "iteration": event.iteration, **values}).encode() + b"\n"
        with self._lock:
            if self._broken:
                return
            try:
                if self._file is None:
                    self._file = _opened(self._path)
                self._file.write(line)
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                self._broken = True
                logger.warning("Candidates are not written to %s any more: %s", self._path, error)

    def close(self) -> None:
        """Close the file. May be called twice; a later event opens it again."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


class _Recorder(Protocol):
    def record(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Recorders:
    """Several recorders of the event bus as one, in their order.

    Args:
        recorders: Who hears each event; ``None`` stands for nobody.
    """

    def __init__(self, *recorders: _Recorder | None) -> None:
        self._recorders = tuple(one for one in recorders if one is not None)

    def record(self, event: Event) -> None:
        """Let each keep one event."""
        for one in self._recorders:
            one.record(event)

    def close(self) -> None:
        """Close each."""
        for one in self._recorders:
            one.close()


def read_lines(log_dir: Path) -> Iterator[Mapping[str, Any]]:
    """Return the lines of a run's directory that can be read, in order; none where there is no file.

    A line that a killed run left half written is passed over.
    """
    try:
        file = (log_dir / FILE).open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _opened(path: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab")
    if file.tell():
        with path.open("rb") as before:
            before.seek(-1, os.SEEK_END)
            torn = before.read(1) != b"\n"
        if torn:
            # What a killed run left half written must not swallow the first line of this one.
            file.write(b"\n")
    return file


def _started(event: Any) -> tuple[str, dict[str, Any]]:
    texts = dict(event.components)
    return "started", {"id": candidate_id(texts), "texts": texts}


def _proposed(event: Any) -> tuple[str, dict[str, Any]]:
    values = {"id": event.candidate_id, "parent": event.parent_id, "operator": event.operator}
    return "proposed", {**values, "texts": dict(event.texts)}


def _refused(event: Any) -> tuple[str, dict[str, Any]]:
    return "refused", {"parent": event.parent_id, "operator": event.operator, "reason": event.reason}


def _screened(event: Any) -> tuple[str, dict[str, Any]]:
    return "screened", {"id": event.candidate_id, "passed": event.passed, "reason": event.reason}


def _rejected(event: Any) -> tuple[str, dict[str, Any]]:
    return "rejected", {"parent_score": event.old_score, "score": event.new_score, "reason": event.reason}


def _validated(event: Any) -> tuple[str, dict[str, Any]]:
    values = {"index": event.index, "id": event.candidate_id, "texts": dict(event.texts)}
    return "validated", {**values, "score": event.score, "best": event.best}


def _accepted(event: Any) -> tuple[str, dict[str, Any]]:
    return "accepted", {"index": event.index, "parents": list(event.parents), "score": event.score}


def _iteration(event: Any) -> tuple[str, dict[str, Any]]:
    return "iteration", {}


def _finished(event: Any) -> tuple[str, dict[str, Any]]:
    return "finished", {"index": event.best_index, "reason": event.reason}


_LINES: dict[type, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    RunStarted: _started,
    CandidateProposed: _proposed,
    CandidateRefused: _refused,
    CandidateScreened: _screened,
    CandidateRejected: _rejected,
    CandidateAccepted: _accepted,
    ValidationFinished: _validated,
    IterationFinished: _iteration,
    RunFinished: _finished,
}
