"""Rollouts and answers as JSON and back. What would not come back as it was is marked, and bought
again.

Plain JSON values stand for themselves. Anything else is an object with the one key ``"$"``, which
names how to read it. Reading runs no code of the file's choosing: a class is used only where its
module is loaded already and it is an enum, a dataclass or a pydantic model, and none of its
constructors or validators is called.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import operator
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import dspy
import pydantic

from combee_dspy.records import CallUsage, FailedCall, PredictorCall, Rollout
from combee_dspy.rollouts._jobs import Answer

E = TypeVar("E", bound=dspy.Example)

_MARK = "$"
_LARGEST = 2**63
_SURROGATE = re.compile("[\ud800-\udfff]")
_columns = operator.attrgetter(*(item.name for item in dataclasses.fields(CallUsage)))


class NotStorableError(Exception):
    """A value cannot be written as JSON, or cannot be read again."""


def encode_rollout(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as JSON values; with ``"partial": true`` where some of its values have no
    JSON form.
    """
    lost: list[str] = []
    data: dict[str, Any] = {
        "example_id": rollout.example_id,
        "score": rollout.score,
        "prediction": _fields(rollout.prediction, lost),
        "calls": [
            {
                "predictor": call.predictor,
                "inputs": _fields(call.inputs, lost),
                "outputs": _fields(call.outputs, lost),
                **({"completion": _encode(call.completion)} if call.completion else {}),
                **({"also": _encode(call.also)} if call.also else {}),
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
            data[name] = _encode(value if isinstance(value, str) else dict(value))
    if rollout.bare:
        data["bare"] = True
    return {**data, "partial": True} if lost else data


def decode_rollout(data: Mapping[str, Any]) -> Rollout | None:
    """Return what :func:`encode_rollout` was given; ``None`` where it cannot be had again."""
    if data.get("partial"):
        return None
    try:
        known = {
            name: decode_value(value)
            for name, value in data.items()
            if name not in ("usage", "calls")
        }
        calls = tuple(PredictorCall(**decode_value(call)) for call in data["calls"])
        return Rollout(**known, calls=calls, usage=_usage(data))
    except NotStorableError:
        return None


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
            _with_fields(dspy.Prediction, data["fields"].items())
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
        return decode_value(_texts_changed(encode_value(value), change))
    except Exception:  # noqa: BLE001 - foreign objects may fail in any way; what cannot be looked into is not passed on
        return f"[{type(value).__name__}]"


def _texts_changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_texts_changed(one, change) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get(_MARK) == "surrogates":
        return _encode(change(json.loads(value["value"])))
    if value.get(_MARK) in (*_TEXTS, "enum"):
        return value
    named = (_MARK, "class", "inputs", "set") if _MARK in value else ()
    return {key: one if key in named else _texts_changed(one, change) for key, one in value.items()}


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

    def one(item: Any) -> str:
        return hash_of(item if isinstance(item, str) else json.dumps(item, sort_keys=True))

    def fields(items: Any) -> Any:
        return (
            {name: one(item) for name, item in items.items()} if isinstance(items, dict) else items
        )

    found = {**value, "partial": True}
    found |= {
        name: one(value[name])
        for name in ("feedback", "error", "inputs", "failed", "value")
        if name in value
    }
    found |= {name: fields(value[name]) for name in ("prediction", "fields") if name in value}
    if "calls" in value:
        found["calls"] = [
            {
                "predictor": call["predictor"],
                "inputs": fields(call["inputs"]),
                "outputs": fields(call["outputs"]),
                **({"completion": one(call["completion"])} if "completion" in call else {}),
            }
            for call in value["calls"]
        ]
    return found


def _usage(data: Mapping[str, Any]) -> tuple[CallUsage, ...]:
    return tuple(CallUsage(*row) for row in data["usage"])


def _fields(values: Any, lost: list[str]) -> dict[str, Any] | None:
    """Return fields by name; those without a JSON form are marked, and named in ``lost``."""
    if values is None:
        return None
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if name == _MARK:
                raise NotStorableError("a field of this name cannot be told from what it marks")
            found[name] = value if type(value) is str and value.isascii() else encode_value(value)
        except Exception as error:  # noqa: BLE001 - foreign objects may fail in any way; it is marked
            lost.append(name)
            found[name] = {
                _MARK: "unencodable",
                "class": type(value).__qualname__,
                "reason": str(error)[:200],
            }
    return found


def encode_value(value: object) -> Any:
    """Return a value as JSON values.

    Raises:
        NotStorableError: It, or something in it, would not come back as it was.
    """
    encoded = _encode(value)
    text = json.dumps(encoded, sort_keys=True) if isinstance(encoded, (dict, list)) else ""
    # A class with hooks of its own may not be what its fields say.
    if '"$"' in text and text != json.dumps(_encode(decode_value(encoded)), sort_keys=True):
        raise NotStorableError(f"a {type(value).__name__} would not come back as it was")
    return encoded


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return (
            _text("surrogates", value)
            if not value.isascii() and _SURROGATE.search(value)
            else value
        )
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_LARGEST <= value < _LARGEST else _text("int", value)
    if kind is float:
        return value if math.isfinite(value) else _text("float", value)
    if kind is list:
        return [_encode(item) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value) and _MARK not in value:
            return {key: _encode(item) for key, item in value.items()}
        return {
            _MARK: "dict",
            "value": [[_encode(key), _encode(item)] for key, item in value.items()],
        }
    if kind in (tuple, set, frozenset):
        items = [_encode(item) for item in value]
        # Sets have no order of their own: the same set is to give the same text.
        ordered = (
            items
            if kind is tuple
            else sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
        )
        return {_MARK: kind.__name__, "value": ordered}
    return _text(_NAMES[kind], value) if kind in _NAMES else _encode_object(value)


def _text(name: str, value: Any) -> dict[str, Any]:
    return {_MARK: name, "value": _TEXTS[name][1](value)}


def _encode_object(value: Any) -> dict[str, Any]:
    if type(value) in (dspy.Prediction, dspy.Example):
        named = (
            sorted(value.inputs().keys())
            if getattr(value, "_input_keys", None) is not None
            else None
        )
        pairs = [[name, _encode(item)] for name, item in value.items(include_dspy=True)]
        return {_MARK: "fields", "class": type(value).__name__, "fields": pairs, "inputs": named}
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find(name) is not kind:
        raise NotStorableError(f"{name} cannot be found again by its name")
    if isinstance(value, enum.Enum):
        return {_MARK: "enum", "class": name, "value": value.name}
    if dataclasses.is_dataclass(value):
        state = {
            item.name: _encode(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
        return {_MARK: "dataclass", "class": name, "fields": state}
    if isinstance(value, pydantic.BaseModel) and not value.__pydantic_private__:
        state = {name: _encode(getattr(value, name)) for name in kind.model_fields}
        extra = {name: _encode(item) for name, item in (value.model_extra or {}).items()}
        return {
            _MARK: "model",
            "class": name,
            "fields": state,
            "extra": extra,
            "set": sorted(value.model_fields_set),
        }
    raise NotStorableError(f"{name} has no JSON form")


def decode_value(value: Any) -> Any:
    """Return what :func:`encode_value` was given.

    Raises:
        NotStorableError: This is nothing that it returns, or it needs a class that is not loaded.
    """
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: decode_value(item) for key, item in value.items()}
    kind = value[_MARK]
    try:
        return _TEXTS[kind][2](value["value"]) if kind in _TEXTS else _OBJECTS[kind](value)
    except NotStorableError:
        raise
    except Exception as error:
        # Whatever a text that nobody vouches for leads to, it is the text that is wrong.
        raise NotStorableError(f"{kind} cannot be read: {type(error).__name__}: {error}") from error


def _decode_dataclass(data: Mapping[str, Any]) -> Any:
    kind = _loaded(data["class"], object)
    if {item.name for item in dataclasses.fields(kind)} != set(data["fields"]):
        raise NotStorableError(f"{data['class']} has other fields now")
    made: Any = object.__new__(kind)
    for name, item in data["fields"].items():
        object.__setattr__(made, name, decode_value(item))
    return made


def _decode_model(data: Mapping[str, Any]) -> Any:
    kind = _loaded(data["class"], pydantic.BaseModel)
    values, extra = decode_value(data["fields"]), decode_value(data["extra"])
    if set(values) != set(kind.model_fields) or kind.__private_attributes__:
        raise NotStorableError(f"{data['class']} has other fields now")
    made = kind.__new__(kind)
    # What model_construct() does, without calling what the class hooks into it.
    object.__setattr__(made, "__dict__", values)
    object.__setattr__(made, "__pydantic_fields_set__", set(data["set"]))
    object.__setattr__(made, "__pydantic_private__", None)
    object.__setattr__(
        made, "__pydantic_extra__", extra if kind.model_config.get("extra") == "allow" else None
    )
    return made


def _with_fields(kind: type[E], fields: Iterable[tuple[str, Any]]) -> E:
    # One by one: as an argument of the class, `base` would be another example, and `self` no
    # argument at all.
    made = kind()
    for name, item in fields:
        made[name] = decode_value(item)
    return made


def _decode_fields(data: Mapping[str, Any]) -> Any:
    kinds: dict[str, type[dspy.Example]] = {"Prediction": dspy.Prediction, "Example": dspy.Example}
    made = _with_fields(kinds[data["class"]], data["fields"])
    return made if data["inputs"] is None else made.with_inputs(*data["inputs"])


def _loaded(name: str, base: type) -> Any:
    found = _find(name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise NotStorableError(f"no {base.__name__} is loaded as {name!r}")
    return found


def _find(name: str) -> object:
    module, _, path = name.partition(":")
    # Never imported: a file must not choose which code runs.
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "date": (datetime.date, str, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, str, datetime.datetime.fromisoformat),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "float": (float, repr, float),
    "int": (int, str, int),
    "surrogates": (str, json.dumps, json.loads),
}
_NAMES = {kind: name for name, (kind, _, _) in _TEXTS.items()}
_OBJECTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "dict": lambda data: {decode_value(key): decode_value(item) for key, item in data["value"]},
    "tuple": lambda data: tuple(decode_value(data["value"])),
    "set": lambda data: set(decode_value(data["value"])),
    "frozenset": lambda data: frozenset(decode_value(data["value"])),
    "enum": lambda data: _loaded(data["class"], enum.Enum)[data["value"]],
    "dataclass": _decode_dataclass,
    "model": _decode_model,
    "fields": _decode_fields,
}
