"""What people say: a file to which any process appends, and which the learner reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import TypeAdapter, ValidationError

from combee_dspy.files import append_plain, make_folder, read_plain

__all__ = ["PersonAnswer", "read_answers", "write_answer"]

_FILE = "people.jsonl"


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """What a person said of a version, or of a lesson."""

    action: Literal["approve", "reject", "remove"]
    who: str
    why: str = ""
    version: int | None = None
    text: str = ""


_ANSWER = TypeAdapter(PersonAnswer)


def write_answer(home: Path, answer: PersonAnswer) -> None:
    """Append what a person said; the learner takes it up with its next tick.

    Raises:
        OSError: It cannot be written.
    """
    make_folder(home)
    append_plain(home / _FILE, orjson.dumps(asdict(answer)) + b"\n")


def read_answers(home: Path, after: int) -> list[tuple[int, PersonAnswer | None]]:
    """Return what came behind a line, with its number from 1; ``None`` for a line that cannot be
    read. One that is still being written is left for later.
    """
    if not (home / _FILE).exists():
        return []
    lines = read_plain(home / _FILE).split(b"\n")[:-1]
    return [(number, _read(line)) for number, line in enumerate(lines, 1) if number > after]


def _read(line: bytes) -> PersonAnswer | None:
    try:
        return _ANSWER.validate_json(line)
    except ValidationError:
        return None
