"""From records of anybody's to traces: which field holds what."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TypeAlias

import numpy as np
import orjson

from combee_dspy.exceptions import ArgumentValueError, TraceFieldError
from combee_dspy.lms.redact import scrub
from combee_dspy.records import PredictorCall
from combee_dspy.traces._records import Trace, as_fields, parse_score, parse_time

__all__ = ["FieldPaths", "RecordReader", "check_paths", "records_as_traces"]

logger = logging.getLogger("combee_dspy")

FieldPaths: TypeAlias = Mapping[str, str | tuple[str, ...] | list[str] | Mapping[str, str]]
"""Where a record holds what a trace has, by the names of :class:`Trace`'s attributes.

A path is the name of a field, or names joined by dots. ``inputs``, ``outputs``, ``expected`` and
``tags`` take a path to an object, or to a value, several paths, or paths by the names that their
values get. ``calls`` takes a path to a list of calls, or to the messages of a chat. What is left
out stands under its own name.
"""

_OBJECTS = ("inputs", "outputs", "expected", "tags")
_VALUES = ("id", "score", "feedback", "error", "time", "prompt", "model")
_REQUIRED = ("inputs", "outputs", "id", "time", "prompt", "model")
# A field of a sparse record may be missing. One that no record has is named wrongly, and of one
# that every record should have so many are enough to tell.
_PATIENCE = 1_000
# Who said what in a chat: OpenAI's messages, and ShareGPT's.
_SPEAKERS = ("role", "from")
_EXCERPT = 400
_SAMPLE = 80
_MISSING = object()


def check_paths(fields: FieldPaths) -> None:
    """Refuse names that no trace has.

    Raises:
        ArgumentValueError: There is one.
    """
    if unknown := sorted(set(fields) - {*_OBJECTS, *_VALUES, "calls"}):
        remedy = f"Name some of {', '.join((*_OBJECTS, *_VALUES, 'calls'))}."
        raise ArgumentValueError("fields", unknown[0], "is nothing that a trace has", remedy)


def records_as_traces(
    records: Iterable[Mapping[str, object]], fields: FieldPaths | None = None
) -> Iterator[Trace]:
    """Yield mappings, such as the rows of a data set, as traces.

    Args:
        records: One mapping a trace.
        fields: Where they hold what; by default under the names of :class:`Trace`.

    Raises:
        TraceFieldError: A record cannot be read; it shows the record and the field.
    """
    reader = RecordReader("records", fields or {})
    for number, record in enumerate(records, start=1):
        yield reader.trace(record, f"record {number}", str(number))
    reader.finish()


@dataclass(slots=True)
class _Wanted:
    """A path that no record had so far, and the first record that lacked it."""

    name: str
    path: str
    record: Mapping[str, object] | None = None
    place: str = ""


class RecordReader:
    """Reads records of one source as traces. It notes which paths no record has; not thread-safe.

    Args:
        source: What errors call the source.
        fields: Where records hold what.
        whole: Whether it reads from the beginning: only then is a path that no record has wrong.
    """

    def __init__(self, source: str, fields: FieldPaths, *, whole: bool = True) -> None:
        self._source, self._fields = source, fields
        paths = [(name, path) for name in fields for path in _paths(fields[name])]
        self._wanted = {path: _Wanted(name, path) for name, path in paths} if whole else {}
        self._records = 0

    def trace(self, record: Mapping[str, object], place: str, cursor: str) -> Trace:
        """Return a record as a trace.

        Args:
            record: JSON values.
            place: What names the record at its source, and is its id where it has none.
            cursor: What the source goes on from, behind the record.

        Raises:
            TraceFieldError: It has no inputs, or a value that is not what its field is for.
        """
        self._note_missing(record, place)
        objects = {name: self._object(record, name) for name in _OBJECTS}
        values = {name: _look_up(record, self._path(name)) for name in _VALUES}
        if not objects["inputs"]:
            raise self._error("inputs", record, place, "holds no inputs")
        score, time = parse_score(values["score"]), parse_time(values["time"])
        for name, value in (("score", score), ("time", time)):
            if value is None and values[name] not in (None, _MISSING):
                raise self._error(name, record, place, f"is no {name}: {_sample(values[name])}")
        texts = {name: _text(values[name]) for name in ("id", "feedback", "error")}
        return Trace(
            texts["id"] or place,
            objects["inputs"],
            objects["outputs"] or None,
            self._calls(record, place),
            score,
            texts["feedback"],
            objects["expected"],
            texts["error"],
            time,
            _text(values["prompt"]),
            _text(values["model"]),
            {name: _text(value) for name, value in objects["tags"].items()},
            cursor,
        )

    def finish(self) -> None:
        """Refuse a mapping of which no record had a path, now that all were read.

        A log without errors is no mistake: a warning says so.

        Raises:
            TraceFieldError: There is such a path; it shows the first record.
        """
        for wanted in self._wanted.values():
            if wanted.name == "error":
                text = "%s: error, looked for at %r, is in none of %d records"
                logger.warning(text, self._source, wanted.path, self._records)
            else:
                self._refuse(wanted)

    def _refuse(self, wanted: _Wanted) -> None:
        if wanted.record is not None:
            problem = f"is in none of {self._records} records"
            raise self._error(wanted.name, wanted.record, wanted.place, problem, wanted.path)

    def _note_missing(self, record: Mapping[str, object], place: str) -> None:
        self._records += 1
        for path, wanted in list(self._wanted.items()):
            if _look_up(record, path) is not _MISSING:
                del self._wanted[path]
            elif wanted.record is None:
                wanted.record, wanted.place = record, place
        if self._records == _PATIENCE:
            for wanted in self._wanted.values():
                if wanted.name in _REQUIRED:
                    self._refuse(wanted)

    def _path(self, name: str) -> str:
        path = self._fields.get(name, name)
        return path if isinstance(path, str) else name

    def _object(self, record: Mapping[str, object], name: str) -> dict[str, object]:
        paths = self._fields.get(name, name)
        if isinstance(paths, str):
            value = _look_up(record, paths)
            return {} if value is _MISSING else as_fields(value, paths.rpartition(".")[2])
        named = (
            paths.items()
            if isinstance(paths, Mapping)
            else [(path.rpartition(".")[2], path) for path in paths]
        )
        values = {target: _look_up(record, path) for target, path in named}
        return as_fields(
            {
                target: value
                for target, value in values.items()
                if value is not None and value is not _MISSING
            },
            "",
        )

    def _calls(self, record: Mapping[str, object], place: str) -> tuple[PredictorCall, ...]:
        steps = _look_up(record, self._path("calls"))
        if steps is _MISSING or steps is None:
            return ()
        if not isinstance(steps, (list, tuple)):
            raise self._error("calls", record, place, "is no list of calls")
        calls: list[PredictorCall] = []
        for step in steps:
            call = _read_call(step)
            if call is None:
                problem = f"holds no call, which has inputs or outputs: {_sample(step)}"
                raise self._error("calls", record, place, problem)
            calls.append(call)
        return tuple(calls)

    def _error(
        self, name: str, record: Mapping[str, object], place: str, problem: str, path: str = ""
    ) -> TraceFieldError:
        paths = (path,) if path else _paths(self._fields.get(name, name))
        where = " or ".join(map(repr, paths))
        field = f"{name}, looked for at {where}," if where != repr(name) else name
        text = scrub(_text(dict(record)))
        excerpt = text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…"
        remedy = "Name where it stands in fields=, as sources and records_as_traces take it."
        return TraceFieldError(f"{self._source}, {place}", problem, remedy, field, excerpt)


def _read_call(step: object) -> PredictorCall | None:
    """Return a step of a record, or a message of a chat, as a call; ``None`` for neither."""
    if not isinstance(step, Mapping):
        return None
    if speaker := next((name for name in _SPEAKERS if name in step), None):
        fields = {name: value for name, value in step.items() if name != speaker and value}
        return PredictorCall(_text(step[speaker]), {}, as_fields(fields, ""))
    if not {"inputs", "outputs", "completion"} & step.keys():
        return None
    outputs = step.get("outputs")
    return PredictorCall(
        _text(step.get("predictor")),
        as_fields(step.get("inputs"), "input"),
        None if outputs is None else as_fields(outputs, "output"),
        _text(step.get("completion")),
    )


def _paths(paths: str | tuple[str, ...] | list[str] | Mapping[str, str]) -> tuple[str, ...]:
    if isinstance(paths, str):
        return (paths,)
    return tuple(paths.values() if isinstance(paths, Mapping) else paths)


def _look_up(record: Mapping[str, object], path: str) -> object:
    """Return what a record holds. Data frames hold NumPy's numbers, and NaN or NaT for nothing."""
    value: object = record
    for name in (path,) if path in record else path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, (float, date)) and value != value else value


def _sample(value: object) -> str:
    """Return what a message shows of a value: scrubbed before it is cut, so that no part stays."""
    return scrub(repr(value))[:_SAMPLE]


def _text(value: object) -> str:
    if value is None or value is _MISSING:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
