"""Rollouts as lines of the journal and as rows of a table."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import orjson

from combee_dspy.events import RolloutFinished
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.tracking._redact import Redactor

__all__ = ["Cells", "Inputs", "Row", "cells_of", "data_of", "parquet_of", "row_of", "table_of"]

CELL = 2_000
"""Characters of a cell. A longer text is cut, visibly."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout, as it is recorded: the columns of the table, in order.

    Attributes:
        rollout_id: Unique among all runs: the run's id, the process, and a serial.
        run_id: The run.
        iteration: The iteration, 0 before the first.
        purpose: ``"parent"``, ``"child"``, ``"screen"``, ``"validation"``, ``"heldout"``, or
            ``"speculative"`` for one that was started early and that nobody asked for in the end.
        split: ``"train"``, ``"validation"`` or ``"heldout"``.
        candidate_id: The candidate's content hash.
        parent_ids: Its parents' content hashes.
        example_id: The example's row hash.
        roles: Model name by role: who ran it, who judges, and who proposed it.
        prompt_hash: Hash of all prompts that the task calls sent; empty where there were none.
        score: The score.
        feedback_length: Characters of the feedback, before it was cut for :attr:`feedback`.
        calls: LM calls, errors and cache hits included; ``None``, like all of the following
            figures of calls, where they could not be told from those of other rollouts.
        failed_calls: Those that ended with an error.
        cached_calls: Those that DSPy's cache answered.
        prompt_tokens: Prompt tokens.
        completion_tokens: Completion tokens.
        dollars: Dollars; ``None`` where the cost of a call is not known.
        gpu_seconds: Share of the declared GPUs; ``None`` where none are declared.
        latency: Seconds of program and metric together.
        queue_wait: Seconds from submission to start; ``None`` where nobody took the time.
        cached: Whether it was taken from the run's memo: then it cost nothing.
        error_class: Class name of its error; empty without one.
        schedule_id: The schedule decision it ran under; empty where there was none.
        usage: Its calls by role and model: fields of :class:`combee_dspy.records.CallUsage`.
        error: The error's text.
        feedback: The metric's text.
        inputs: The example's inputs.
        prediction: What the program returned.
        steps: Caller, inputs and outputs of each predictor call, of a few rollouts only.
    """

    rollout_id: str
    run_id: str
    iteration: int
    purpose: str
    split: str
    candidate_id: str
    parent_ids: tuple[str, ...]
    example_id: str
    roles: Mapping[str, str]
    prompt_hash: str
    score: float
    feedback_length: int
    calls: int | None
    failed_calls: int | None
    cached_calls: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    dollars: float | None
    gpu_seconds: float | None
    latency: float
    queue_wait: float | None
    cached: bool
    error_class: str
    schedule_id: str
    usage: tuple[Mapping[str, Any], ...]
    error: str
    feedback: str
    inputs: str
    prediction: str
    steps: tuple[tuple[str, str, str], ...] = ()


class Inputs:
    """Shows the inputs of examples, each once: every candidate runs on the same ones. Not thread-safe.

    Args:
        redactor: Takes keys out of them.
    """

    _KEPT = 4_096

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._shown: dict[str, str] = {}

    def text(self, rollout: Rollout) -> str:
        """Return the inputs of a rollout's example as a cell, without keys."""
        found = self._shown.get(rollout.example_id)
        if found is None:
            if len(self._shown) >= self._KEPT:
                self._shown.clear()
            (found,) = self._redactor.cells((_inputs(rollout.example),), CELL)
            self._shown[rollout.example_id] = found
        return found


def data_of(  # noqa: PLR0913 - what one line says, each by its name
    event: RolloutFinished,
    redactor: Redactor,
    *,
    run_id: str,
    serial: str,
    roles: Mapping[str, str],
    parents: Sequence[str],
    with_steps: bool = False,
    inputs: Inputs | None = None,
) -> dict[str, Any]:
    """Return a rollout's line in the journal, by the columns of :class:`Row`, without keys and with long cells cut.

    The calls by role are records, not yet JSON data.

    Args:
        event: The rollout.
        redactor: Takes keys out of texts.
        run_id: The run.
        serial: What makes the rollout's id unique in the run.
        roles: Model name by role, as announced.
        parents: The candidate's parents.
        with_steps: Whether to keep what each predictor got and returned.
        inputs: Remembers the inputs of examples; made with the same redactor.
    """
    rollout = event.rollout
    texts: list[Any] = [rollout.error, rollout.feedback, rollout.prediction]
    if with_steps:
        steps = rollout.trace
        callers = rollout.callers if len(rollout.callers) == len(steps) else ("",) * len(steps)
        for caller, (_, given, returned) in zip(callers, steps, strict=True):
            texts += [caller, given, returned]
    error, feedback, prediction, *rest = redactor.cells(texts, CELL)
    usage: Sequence[CallUsage] | None = () if event.cached else rollout.usage
    found: dict[str, Any] = {
        "kind": "rollout",
        "rollout_id": f"{run_id}.{serial}",
        "run_id": run_id,
        "iteration": event.iteration,
        "purpose": event.purpose,
        "split": event.split,
        "candidate_id": event.candidate_id,
        "parent_ids": parents,
        "example_id": rollout.example_id,
        "roles": _roles(roles, usage),
        "prompt_hash": rollout.prompt_hash,
        "score": float(rollout.score),
        "feedback_length": len(rollout.feedback),
        **_sums(usage),
        "latency": float(rollout.seconds),
        "queue_wait": rollout.queue_seconds,
        "cached": event.cached,
        "error_class": _error_class(rollout),
        "schedule_id": event.schedule_id or ("" if event.cached else rollout.schedule_id),
        # Records as they are: orjson writes their fields.
        "usage": usage or (),
        "error": error,
        "feedback": feedback,
        "inputs": (inputs or Inputs(redactor)).text(rollout),
        "prediction": prediction,
    }
    if rest:
        found["steps"] = [rest[start : start + 3] for start in range(0, len(rest), 3)]
    return found


def row_of(data: Mapping[str, Any]) -> Row:
    """Return the row that :func:`data_of` wrote. What an older journal did not know is ``None``."""
    values = {name: data.get(name) for name in _NAMES}
    # JSON has no number for a metric's NaN.
    values["score"] = float("nan") if data.get("score") is None else float(data["score"])
    values["parent_ids"] = tuple(data.get("parent_ids") or ())
    values["usage"] = tuple(data.get("usage") or ())
    values["roles"] = dict(data.get("roles") or {})
    values["steps"] = tuple((str(one), str(two), str(three)) for one, two, three in data.get("steps") or ())
    return Row(**values)  # type: ignore[arg-type]  # read back as written


def table_of(rows: Sequence[Row], why: Sequence[str]) -> dict[str, Any]:
    """Return rows in the JSON layout that MLflow's table view reads (pandas' ``split``).

    Args:
        rows: The rows.
        why: Why each is shown.
    """
    data = [[reason, *(_json(getattr(row, name)) for name in _SHOWN)] for row, reason in zip(rows, why, strict=True)]
    return {"columns": ["why", *_SHOWN], "data": data}


Cells = tuple[Any, ...]
"""A rollout as the table holds it: text, numbers and flags alone, so that keeping thousands costs the garbage
collector nothing.

First the columns that are flat, then those that are nested, each in the order of :class:`Row` and without ``steps``:
``rollout_id`` and ``run_id`` are the first two.
"""


def cells_of(line: Mapping[str, Any]) -> Cells:
    """Return a rollout's cells, nested values as JSON text: every reader of Parquet has strings.

    Args:
        line: What :func:`data_of` wrote of it.
    """
    try:
        flat, nested = _FLAT_OF(line), _NESTED_OF(line)
    except KeyError:
        # Written before there was such a column.
        flat, nested = tuple(map(line.get, _FLAT)), tuple(map(line.get, _NESTED))
    return *flat, *[None if value is None else orjson.dumps(value).decode() for value in nested]


def parquet_of(rows: Sequence[Cells]) -> bytes | None:
    """Return rollouts as a zstd Parquet file; ``None`` where pyarrow is not installed.

    Args:
        rows: The cells of each.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return None
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in _KINDS.items()])
    columns = list(zip(*rows, strict=True)) or [()] * len(_KINDS)
    table = pa.Table.from_pydict(dict(zip((*_FLAT, *_NESTED), columns, strict=True)), schema=schema)
    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()


_NAMES = tuple(field.name for field in fields(Row))
_KINDS = {field.name: str(field.type).split(" ")[0] for field in fields(Row) if field.name != "steps"}
_FLAT = tuple(name for name, kind in _KINDS.items() if kind in {"str", "int", "float", "bool"})
_NESTED = tuple(name for name in _KINDS if name not in _FLAT)
_FLAT_OF, _NESTED_OF = itemgetter(*_FLAT), itemgetter(*_NESTED)
# What tells something comes first: a screen shows four to six columns of the table.
_FIRST = ("score", "inputs", "prediction", "feedback", "error")
_SHOWN = (*_FIRST, *(name for name in _NAMES if name not in {*_FIRST, "run_id", "usage", "steps"}))


def _cell(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, (tuple, list, dict)) else value


def _json(value: Any) -> Any:
    # JSON has no NaN: a browser would refuse the whole table.
    return None if isinstance(value, float) and not math.isfinite(value) else _cell(value)


def _error_class(rollout: Rollout) -> str:
    if rollout.error is None:
        # DSPy's own record of an answer that did not parse is scored, and no error of the program.
        return "AdapterParseError" if type(rollout.prediction).__name__ == "FailedPrediction" else ""
    name = rollout.error.partition(":")[0]
    return name if name.isidentifier() else "Error"


def _roles(announced: Mapping[str, str], usage: Sequence[CallUsage] | None) -> Mapping[str, str]:
    if not usage:
        return announced
    roles = {**announced}
    for one in usage:
        roles[one.role] = one.model
    return roles


def _sums(usage: Sequence[CallUsage] | None) -> dict[str, Any]:
    if usage is None:
        return dict.fromkeys(_FIGURES)
    calls = failed = cached = prompt = completion = 0
    dollars: float | None = 0.0
    gpu_seconds: float | None = None
    for one in usage:
        calls += one.calls
        failed += one.errors
        cached += one.cached
        prompt += one.prompt_tokens
        completion += one.completion_tokens
        dollars = None if dollars is None or one.dollars is None else dollars + one.dollars
        if one.gpu_seconds is not None:
            gpu_seconds = (gpu_seconds or 0.0) + one.gpu_seconds
    return {
        "calls": calls,
        "failed_calls": failed,
        "cached_calls": cached,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "dollars": dollars,
        "gpu_seconds": gpu_seconds,
    }


_FIGURES = tuple(_sums(()))


def _inputs(example: Any) -> Any:
    try:
        return example.inputs()
    except (AttributeError, ValueError):
        # No dspy.Example, or one whose inputs were never marked: show all of it.
        return example
