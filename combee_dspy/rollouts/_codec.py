"""Rollouts and answers as JSON and back. What would not come back as it was is marked, and bought
again.

A value of the row that a program was given is kept as its field's name where it has no JSON form:
whoever goes on with a run brings the rows.
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
    """Return a rollout as JSON values; with ``"partial": true`` where some of its values have no
    JSON form.

    Args:
        rollout: The rollout.
        row: The fields of its example, where whoever decodes it has them too.
    """
    lost: list[str] = []
    data: dict[str, Any] = {
        "example_id": rollout.example_id,
        "score": rollout.score,
        "prediction": _fields(rollout.prediction, lost, row),
        "calls": [
            {
                "predictor": call.predictor,
                "inputs": _fields(call.inputs, lost, row),
                "outputs": _fields(call.outputs, lost, row),
                **({"completion": encode_value(call.completion)} if call.completion else {}),
                **({"also": encode_value(call.also)} if call.also else {}),
            }
            for call in rollout.calls
        ],
        "usage": [list(_columns(row)) for row in rollout.usage],
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
    """Return what :func:`encode_rollout` was given; ``None`` where it cannot be had again.

    Args:
        data: What it returned; ``inputs`` and ``expected`` may stand beside it, for people.
        row: The fields of the rollout's example, where they are at hand.
    """
    if data is None or data.get("partial"):
        return None
    try:
        fields = {
            name: _decoded(value, row)
            for name, value in data.items()
            if name not in ("usage", "calls", "inputs", "expected")
        }
        calls = tuple(
            PredictorCall(**{name: _decoded(part, row) for name, part in call.items()})
            for call in data["calls"]
        )
        return Rollout(**fields, calls=calls, usage=_usage(data))
    except NotStorableError:
        return None


def _decoded(value: Any, row: Mapping[str, Any] | None) -> Any:
    """Return a value, or fields some of which may be those of the row."""
    if not isinstance(value, dict) or MARK in value:
        return decode_value(value)
    return {name: _decoded_field(item, row) for name, item in value.items()}


def _decoded_field(value: Any, row: Mapping[str, Any] | None) -> Any:
    if not isinstance(value, dict) or value.get(MARK) != "row":
        return decode_value(value)
    if row is None or value["field"] not in row:
        raise NotStorableError(f"the row's field {value['field']!r} is not at hand")
    return row[value["field"]]


def encode_answer(answer: Answer) -> dict[str, Any]:
    """Return an LM's answer as JSON values; with ``"partial": true`` where some of its values have
    no JSON form.
    """
    lost: list[str] = []
    outcome = answer.outcome
    data: dict[str, Any] = {
        "usage": [list(_columns(row)) for row in answer.usage],
        "seconds": answer.seconds,
        "queue_seconds": answer.queue_seconds,
        **(
            {"failed": outcome.error}
            if isinstance(outcome, FailedCall)
            else {"fields": _fields(outcome, lost)}
        ),
    }
    return {**data, "partial": True} if lost else data


def decode_answer(data: Mapping[str, Any]) -> Answer | None:
    """Return what :func:`encode_answer` was given; ``None`` where it cannot be had again."""
    if data.get("partial"):
        return None
    try:
        failed = data.get("failed")
        outcome = (
            with_fields(dspy.Prediction, data["fields"].items())
            if failed is None
            else FailedCall(failed)
        )
    except NotStorableError:
        return None
    return Answer(outcome, _usage(data), data["seconds"], data["queue_seconds"])


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with every text in it changed, within objects too; one without a JSON form
    becomes its class.
    """
    try:
        return decode_value(map_texts(encode_value(value), change))
    except Exception:  # noqa: BLE001 - foreign objects may fail in any way; what cannot be looked into is not passed on
        return f"[{type(value).__name__}]"


def rollout_with_texts(rollout: Rollout, change: Callable[[str], str]) -> Rollout:
    """Return a rollout with every text of inputs, outputs, feedback and errors changed."""

    def fields(values: Any) -> Any:
        return (
            None
            if values is None
            else {name: with_texts(value, change) for name, value in values.items()}
        )

    calls = tuple(
        dataclasses.replace(
            call,
            inputs=fields(call.inputs),
            outputs=fields(call.outputs),
            completion=change(call.completion),
        )
        for call in rollout.calls
    )
    error = None if rollout.error is None else change(rollout.error)
    return dataclasses.replace(
        rollout,
        prediction=fields(rollout.prediction),
        calls=calls,
        feedback=change(rollout.feedback),
        error=error,
    )


def hashed(value: Mapping[str, Any], hash_of: Callable[[str], str]) -> dict[str, Any]:
    """Return what :func:`encode_rollout` or :func:`encode_answer` gave with hashes in the place of
    its texts.
    """

    def hashed_item(item: Any) -> str:
        return hash_of(item if isinstance(item, str) else json.dumps(item, sort_keys=True))

    def fields(items: Any) -> Any:
        return (
            {name: hashed_item(item) for name, item in items.items()}
            if isinstance(items, dict)
            else items
        )

    hidden = {**value, "partial": True}
    hidden |= {
        name: hashed_item(value[name])
        for name in ("feedback", "error", "inputs", "expected", "failed", "value")
        if name in value
    }
    hidden |= {name: fields(value[name]) for name in ("prediction", "fields") if name in value}
    if "calls" in value:
        hidden["calls"] = [
            {
                "predictor": call["predictor"],
                "inputs": fields(call["inputs"]),
                "outputs": fields(call["outputs"]),
                **({"completion": hashed_item(call["completion"])} if "completion" in call else {}),
            }
            for call in value["calls"]
        ]
    return hidden


def unkept_reason(value: object) -> str:
    """Return why what an encoded rollout or answer holds cannot be had again; empty where it can,
    or where its texts were hashed.
    """
    if not isinstance(value, Mapping):
        parts = value if isinstance(value, list) else []
        return next(filter(None, map(unkept_reason, parts)), "")
    for name, part in value.items():
        if isinstance(part, Mapping) and part.get(MARK) == "unencodable":
            return f"the journal cannot keep {name!r}, a {part['class']} ({part['reason']})"
        if reason := unkept_reason(part):
            return reason
    return ""


def _usage(data: Mapping[str, Any]) -> tuple[CallUsage, ...]:
    return tuple(CallUsage(*row) for row in data["usage"])


def _fields(
    values: Any, lost: list[str], row: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return fields by name; those without a JSON form are marked, and named in ``lost``."""
    if values is None:
        return None
    encoded: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if name == MARK:
                raise NotStorableError("a field of this name cannot be told from what it marks")
            encoded[name] = value if type(value) is str and value.isascii() else encode_value(value)
        except Exception as error:  # noqa: BLE001 - foreign objects may fail in any way; it is marked
            field = next((field for field, item in (row or {}).items() if item is value), None)
            if field is not None and name != MARK:
                encoded[name] = {MARK: "row", "field": field}
                continue
            lost.append(name)
            encoded[name] = {
                MARK: "unencodable",
                "class": type(value).__qualname__,
                "reason": str(error)[:200],
            }
    return encoded
