"""Rollouts and answers as JSON and back. What would not come back as it was is marked, and runs
again.

A value of the program's row without a JSON form is stored as the name of its field: whoever resumes
a run has the rows.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import dspy

from combee_dspy.records import CallUsage, FailedCall, PredictorCall, Rollout
from combee_dspy.rollouts._jobs import Answer
from combee_dspy.rollouts._values import (
    MARK,
    NotStorableError,
    decode_value,
    encode_value,
    map_texts,
    with_fields,
)

_columns = operator.attrgetter(*(item.name for item in dataclasses.fields(CallUsage)))


def encode_rollout(rollout: Rollout, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a rollout as JSON values; with ``"partial": true`` where some have no JSON form.

    Args:
        rollout: The rollout.
        row: The fields of its example, where whoever decodes it has them too.
    """
    lost: list[str] = []
    data: dict[str, Any] = {
        "example_id": rollout.example_id,
        "score": rollout.score,
        "prediction": _encode_fields(rollout.prediction, lost, row),
        "calls": [
            {
                "predictor": call.predictor,
                "inputs": _encode_fields(call.inputs, lost, row),
                "outputs": _encode_fields(call.outputs, lost, row),
                **({"completion": encode_value(call.completion)} if call.completion else {}),
                **({"also": encode_value(call.also)} if call.also else {}),
            }
            for call in rollout.calls
        ],
        "usage": [list(_columns(usage)) for usage in rollout.usage],
        "seconds": rollout.seconds,
        "queue_seconds": rollout.queue_seconds,
        "prompt_hash": rollout.prompt_hash,
    }
    for name in ("feedback", "error", "failed_in", "objective_scores"):
        if value := getattr(rollout, name):
            data[name] = encode_value(value if isinstance(value, str) else dict(value))
    if rollout.bare:
        data["bare"] = True
    return {**data, "partial": True} if lost else data


def decode_rollout(
    data: Mapping[str, Any] | None, row: Mapping[str, Any] | None = None
) -> Rollout | None:
    """Return the rollout that :func:`encode_rollout` encoded; ``None`` where it cannot be read.

    Args:
        data: Its JSON values; ``inputs``, ``expected`` and ``origin`` are for people.
        row: The fields of the rollout's example, where they are at hand.
    """
    if data is None or data.get("partial"):
        return None
    try:
        fields = {
            name: _decode_fields(value, row)
            for name, value in data.items()
            if name not in ("usage", "calls", "inputs", "expected", "origin")
        }
        calls = tuple(
            PredictorCall(**{name: _decode_fields(part, row) for name, part in call.items()})
            for call in data["calls"]
        )
        return Rollout(**fields, calls=calls, usage=_usage(data))
    except NotStorableError:
        return None


def encode_answer(answer: Answer) -> dict[str, Any]:
    """Return an LM's answer as JSON values; with ``"partial": true`` where some have no JSON
    form.
    """
    lost: list[str] = []
    outcome = answer.outcome
    data: dict[str, Any] = {
        "usage": [list(_columns(usage)) for usage in answer.usage],
        "seconds": answer.seconds,
        "queue_seconds": answer.queue_seconds,
    }
    if isinstance(outcome, FailedCall):
        data["failed"] = outcome.error
    else:
        data["fields"] = _encode_fields(outcome, lost, None)
    return {**data, "partial": True} if lost else data


def decode_answer(data: Mapping[str, Any]) -> Answer | None:
    """Return the answer that :func:`encode_answer` encoded; ``None`` where it cannot be read."""
    if data.get("partial"):
        return None
    outcome: dspy.Prediction | FailedCall
    try:
        if data.get("failed") is not None:
            outcome = FailedCall(data["failed"])
        else:
            outcome = with_fields(dspy.Prediction, data["fields"].items())
    except NotStorableError:
        return None
    return Answer(outcome, _usage(data), data["seconds"], data["queue_seconds"])


def _usage(data: Mapping[str, Any]) -> tuple[CallUsage, ...]:
    return tuple(CallUsage(*row) for row in data["usage"])


def _encode_fields(
    values: Any, lost: list[str], row: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return encoded fields by name; the names of those without a JSON form go into ``lost``."""
    if values is None:
        return None
    encoded: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if name == MARK:
                raise NotStorableError("a field of this name looks like a mark")
            encoded[name] = encode_value(value)
        except Exception as error:  # noqa: BLE001 - foreign objects may fail in any way; it is marked
            field = next((field for field, item in (row or {}).items() if item is value), None)
            if field is not None and name != MARK:
                encoded[name] = {MARK: "row", "field": field}
                continue
            lost.append(name)
            kind, reason = type(value).__qualname__, str(error)[:200]
            encoded[name] = {MARK: "unencodable", "class": kind, "reason": reason}
    return encoded


def _decode_fields(value: Any, row: Mapping[str, Any] | None) -> Any:
    """Return a value, or fields some of which may be those of the row."""
    if not isinstance(value, dict) or MARK in value:
        return decode_value(value)
    return {name: _decode_field(item, row) for name, item in value.items()}


def _decode_field(value: Any, row: Mapping[str, Any] | None) -> Any:
    if not isinstance(value, dict) or value.get(MARK) != "row":
        return decode_value(value)
    if row is None or value["field"] not in row:
        raise NotStorableError(f"the row's field {value['field']!r} is not at hand")
    return row[value["field"]]


def unkept_reason(value: object) -> str:
    """Return why an encoded rollout or answer cannot be read again; empty where it can, or where
    its texts were hashed.
    """
    if isinstance(value, list):
        return next(filter(None, map(unkept_reason, value)), "")
    if not isinstance(value, Mapping):
        return ""
    for name, part in value.items():
        if isinstance(part, Mapping) and part.get(MARK) == "unencodable":
            return f"the journal cannot keep {name!r}, a {part['class']} ({part['reason']})"
        if reason := unkept_reason(part):
            return reason
    return ""


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with every text in it changed, within objects too; one without a JSON form
    becomes the name of its class.
    """
    try:
        return decode_value(map_texts(encode_value(value), change))
    except Exception:  # noqa: BLE001 - foreign objects may fail in any way; an unread one goes no further
        return f"[{type(value).__name__}]"


def fields_with_texts(
    values: Mapping[str, object], change: Callable[[str], str]
) -> dict[str, object]:
    """Return fields with every text in them changed."""
    return {name: with_texts(value, change) for name, value in values.items()}


def call_with_texts(call: PredictorCall, change: Callable[[str], str]) -> PredictorCall:
    """Return a call with every text of what went in and came out changed."""
    return dataclasses.replace(
        call,
        inputs=fields_with_texts(call.inputs, change),
        outputs=None if call.outputs is None else fields_with_texts(call.outputs, change),
        completion=change(call.completion),
    )


def rollout_with_texts(rollout: Rollout, change: Callable[[str], str]) -> Rollout:
    """Return a rollout with every text of inputs, outputs, feedback and errors changed."""
    prediction = rollout.prediction
    return dataclasses.replace(
        rollout,
        prediction=None if prediction is None else fields_with_texts(prediction, change),
        calls=tuple(call_with_texts(call, change) for call in rollout.calls),
        feedback=change(rollout.feedback),
        error=None if rollout.error is None else change(rollout.error),
    )


def hashed(value: Mapping[str, Any], hash_of: Callable[[str], str]) -> dict[str, Any]:
    """Return an encoded rollout or answer with hashes in place of its texts."""

    def hash_item(item: Any) -> str:
        return hash_of(item if isinstance(item, str) else json.dumps(item, sort_keys=True))

    def hash_parts(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {name: hash_item(data[name]) for name in names if name in data}

    def hash_fields(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {
            name: hash_parts(data[name], *data[name])
            for name in names
            if isinstance(data.get(name), dict)
        }

    hidden = {**value, "partial": True}
    hidden |= hash_parts(value, "feedback", "error", "inputs", "expected", "failed", "value")
    hidden |= hash_fields(value, "prediction", "fields")
    if "calls" in value:
        hidden["calls"] = [
            {
                "predictor": call["predictor"],
                "inputs": call["inputs"],
                "outputs": call["outputs"],
                **hash_fields(call, "inputs", "outputs"),
                **hash_parts(call, "completion"),
            }
            for call in value["calls"]
        ]
    return hidden
