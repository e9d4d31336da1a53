"""What a server writes of requests: effects, and events beside those that every run has."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import JsonValue

from combee_dspy.events import Event, decode
from combee_dspy.exceptions import JournalDamagedError, JournalEmptyError
from combee_dspy.journal import JOURNAL, Effect, Reader
from combee_dspy.records import Rollout
from combee_dspy.rollouts import decode_rollout, encode_rollout
from combee_strategist.canary._pairs import Answer, Pair, recalled

__all__ = [
    "ChangedJournals",
    "LabelsAwaited",
    "RequestLabelled",
    "awaited",
    "effect_of",
    "encoded",
    "open_journals",
]


@dataclass(frozen=True, slots=True)
class LabelsAwaited(Event):
    """A request whose labels come later, with its inputs and answers, as an encoded rollout."""

    kind: ClassVar[str] = "waiting"
    whole: ClassVar[str] = "rollout"
    rollout: Mapping[str, JsonValue]

    def pair(self, labels: Mapping[str, Any] | None = None) -> Pair | None:
        """Return the request with its labels, where they have come; ``None`` where it was kept in
        another form.
        """
        rollout = decode_rollout(self.rollout)
        if rollout is None or rollout.prediction is None:
            return None
        return recalled(rollout.example_id, rollout.prediction, labels)


def encoded(pair: Pair) -> dict[str, Any]:
    """Return a request as :class:`LabelsAwaited` keeps it."""
    return encode_rollout(Rollout(pair.request, 0.0, prediction=pair.record()))


@dataclass(frozen=True, slots=True)
class RequestLabelled(Event):
    """Somebody said how a served request went.

    Attributes:
        request: Its hash, as in the journal.
        at: Unix time by the server's clock.
        score: From 0 to 1; ``None`` where nobody gave any.
        comment: What was said of it.
        expected: The output fields that were right, encoded.
        trusted: Whether the team vouches for it.
        by: ``"person"`` or ``"judge"``.
    """

    kind: ClassVar[str] = "labelled"
    request: str
    at: float
    score: float | None = None
    comment: str = ""
    expected: Mapping[str, JsonValue] = field(default_factory=dict)
    trusted: bool = False
    by: str = "person"


def open_journals(folder: Path) -> Iterator[Reader]:
    """Yield the journals of all servers, oldest first, each closed before the next is opened.

    One without a table of runs is left out: its server has only begun, or died as it began.

    Raises:
        JournalDamagedError: A journal is not as it was written.
    """
    for path in sorted(folder.rglob(JOURNAL)):
        try:
            reader = Reader(path)
        except JournalEmptyError:
            continue
        except JournalDamagedError as error:
            if error.reason != "it has no table of runs":
                raise
            continue
        with reader:
            yield reader


class ChangedJournals:
    """The journals of all servers, but those that have not changed since they were read.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: dict[Path, tuple[int, ...]] = {}

    def open(self) -> Iterator[Reader]:
        """Yield those that may have changed, as :func:`open_journals` does."""
        for path in sorted(self._folder.rglob(JOURNAL)):
            stamp = _stamp(path)
            if self._stamps.get(path) == stamp:
                continue
            yield from open_journals(path.parent)
            # Clocks of files are coarse: another change at this moment would not be seen.
            if max(stamp, default=0) < time.time_ns() - 2 * 10**9:
                self._stamps[path] = stamp


def _stamp(path: Path) -> tuple[int, ...]:
    numbers: list[int] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with suppress(FileNotFoundError):  # a server that ends takes its log with it
            facts = file.stat()
            numbers += (facts.st_mtime_ns, facts.st_size)
    return tuple(numbers)


def awaited(reader: Reader, request: str) -> Iterator[LabelsAwaited]:
    """Return the answers of a request whose labels had not come, as the journal keeps them."""
    sql = (
        "SELECT id, data FROM event"
        " WHERE kind = 'waiting' AND json_extract(data, '$.example_id') = ?"
    )
    for number, data in reader.rows(sql, (request,)):
        yield decode(LabelsAwaited, data, path=str(reader.path), number=number)


def effect_of(
    request: str, answer: Answer, inputs: Mapping[str, Any] | None, number: int
) -> Effect:
    """Return an answer as an effect, with its texts where there are ``inputs``; ``number`` tells
    it from others of the same request.
    """
    failed_in: Literal["program"] | None = "program" if answer.error else None
    texts: dict[str, Any] = {"seconds": answer.seconds}
    if inputs is not None:
        rollout = Rollout(
            request,
            answer.score or 0.0,
            error=answer.error,
            prediction=answer.prediction,
            calls=answer.calls,
            seconds=answer.seconds,
            failed_in=failed_in,
        )
        # What the queries show of a rollout's inputs stands there.
        shown = encode_rollout(Rollout(request, 0.0, prediction=inputs))["prediction"]
        texts = {**encode_rollout(rollout), "inputs": shown}
    return Effect(
        f"{answer.purpose}/{request}/{number}",
        "rollout",
        texts,
        "serving",
        answer.purpose,
        candidate=f"v{answer.version}",
        example=request,
        split="serving",
        score=answer.score,
        error=answer.error,
        failed_in=failed_in,
        started=answer.started,
        ended=answer.started + answer.seconds,
        usage=answer.usage,
    )
