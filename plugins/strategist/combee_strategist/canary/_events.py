"""What a server writes beside the events that every run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import JsonValue

from combee_dspy.events import Event, decode
from combee_dspy.journal import Reader

__all__ = ["LabelsAwaited", "awaited"]


@dataclass(frozen=True, slots=True)
class LabelsAwaited(Event):
    """A request whose labels come later, with its inputs and answers, as an encoded rollout."""

    kind: ClassVar[str] = "waiting"
    whole: ClassVar[str] = "rollout"
    rollout: Mapping[str, JsonValue]


def awaited(reader: Reader, request: str) -> Iterator[LabelsAwaited]:
    """Return the answers of a request whose labels had not come, as the journal keeps them."""
    sql = (
        "SELECT id, data FROM event"
        " WHERE kind = 'waiting' AND json_extract(data, '$.example_id') = ?"
    )
    for number, data in reader.rows(sql, (request,)):
        yield decode(LabelsAwaited, data, path=str(reader.path), number=number)
