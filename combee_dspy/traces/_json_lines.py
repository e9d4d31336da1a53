"""Traces in a file of JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError, TraceSourceError
from combee_dspy.files import check_plain
from combee_dspy.lms.redact import scrub
from combee_dspy.strategies import parameters
from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._fields import FieldPaths, RecordReader, check_paths
from combee_dspy.traces._records import Trace


@parameters
class JsonLines(TraceSource):
    """A file with one JSON object a line, in the file's order.

    Example:
        >>> from combee_dspy.traces import JsonLines
        >>> fields = {"inputs": ["question"], "outputs": {"answer": "reply.text"}, "score": "stars"}
        >>> JsonLines("logs.jsonl", fields).fields["score"]
        'stars'

    Args:
        path: The file.
        fields: Where a line holds what, by the names of :class:`Trace`'s attributes: a path such as
            ``"reply.text"``, and for ``inputs``, ``outputs``, ``expected`` and ``tags`` several, or
            paths by the names that their values get. What is left out stands under its own name.
    """

    name: ClassVar[str] = "json-lines"

    path: str
    fields: FieldPaths = Field(default_factory=dict)

    def __post_init__(self) -> None:
        check_paths(self.fields)

    def read(self, after: str = "") -> Iterator[Trace]:
        """Yield a trace a line; a cursor is a line's number and the byte behind it."""
        line, _, offset = (after or "0:0").partition(":")
        if not (line.isdecimal() and offset.isdecimal()):
            remedy = "Give the cursor of a trace of this file."
            raise ArgumentValueError("after", after, "is no cursor of a file", remedy)
        file = Path(self.path)
        reader = RecordReader(file.name, self.fields, whole=not after)
        number, place = int(line), int(offset)
        try:
            check_plain(file.resolve())
            with file.open("rb") as lines:
                lines.seek(place)
                for text in lines:
                    if not is_whole(text):
                        break  # whoever writes the file has not ended this line yet
                    number, place = number + 1, place + len(text)
                    if text.strip():
                        record = _parse(text, self.path, number)
                        yield reader.trace(record, f"line {number}", f"{number}:{place}")
        except OSError as error:
            raise TraceSourceError(self.path, str(error), _REMEDY) from error
        reader.finish()


_REMEDY = "Give path= a file with one JSON object a line."
_SHOWN = 80


def parse_line(text: bytes) -> object:
    """Return the JSON value of a line; the first one may begin with a byte order mark."""
    return orjson.loads(text.removeprefix(b"\xef\xbb\xbf"))


def is_whole(text: bytes) -> bool:
    """Return whether a line of a file that grows has come to its end."""
    if text.endswith(b"\n"):
        return True
    try:
        parse_line(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _parse(text: bytes, path: str, number: int) -> dict[str, object]:
    try:
        record = parse_line(text)
    except orjson.JSONDecodeError as error:
        raise TraceSourceError(f"{path}, line {number}", str(error), _REMEDY) from error
    if not isinstance(record, dict):
        problem = f"it holds no object: {scrub(text.decode())[:_SHOWN]!r}"
        raise TraceSourceError(f"{path}, line {number}", problem, _REMEDY)
    return record
