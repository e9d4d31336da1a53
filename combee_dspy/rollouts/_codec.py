"""Values as JSON and back, checked: what would not come back as it was is refused.

Plain JSON values stand for themselves. Anything else is an object with the one
key ``"$"``, which names how to read it. Reading runs no code of the file's
choosing: a class is used only where its module is loaded already and it is an
enum, a dataclass, a pydantic model or a ``dspy.Prediction``, and none of its
constructors or validators is called.

Functions here are pure and safe to call from any thread.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction

__all__ = ["NotStorableError", "decode", "encode", "encode_checked"]

_MARK = "$"
_PLAIN = (str, bool, int, type(None))


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), _from_base64),
    "float": (float, repr, float),
}
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class NotStorableError(Exception):
    """A value cannot be written as JSON, or would not come back as it was."""


def encode_checked(value: object) -> Any:
    """Return a value as JSON values, after reading it back.

    Raises:
        NotStorableError: It cannot be written, or would come back as something else.
    """
    encoded = encode(value)
    again = encode(decode(encoded))
    if json.dumps(encoded, sort_keys=True) != json.dumps(again, sort_keys=True):
        raise NotStorableError(f"a {type(value).__name__} would not come back as it was")
    return encoded


def encode(value: object) -> Any:
    """Return a value as JSON values.

    Raises:
        NotStorableError: It, or something in it, has a type that is not known here.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):  # type: ignore[arg-type]  # a float by its type
        return value
    if kind is list:
        return [encode(item) for item in value]  # type: ignore[attr-defined]  # a list by its type
    if kind is dict:
        return _encode_dict(value)  # type: ignore[arg-type]  # a dict by its type
    for name, (known, write, _) in _TEXTS.items():
        if kind is known:
            return {_MARK: name, "value": write(value)}
    for name, known in _SEQUENCES.items():
        if kind is known:
            items = [encode(item) for item in value]  # type: ignore[attr-defined]  # iterable by its type
            # Sets have no order of their own: the same set is to give the same text.
            return {_MARK: name, "value": items if kind is tuple else sorted(items, key=_sort_key)}
    return _encode_object(value)


def decode(value: Any) -> Any:
    """Return what :func:`encode` was given.

    Raises:
        NotStorableError: This is nothing that it returns, or it needs a class that is not loaded.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: decode(item) for key, item in value.items()}
    kind = value[_MARK]
    try:
        if kind in _TEXTS:
            return _TEXTS[kind][2](value["value"])
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](decode(item) for item in value["value"])
        if kind in _OBJECTS:
            return _OBJECTS[kind](value)
    except NotStorableError:
        raise
    except Exception as error:
        # Whatever a text that nobody vouches for leads to, it is the text that is wrong.
        raise NotStorableError(f"{kind} cannot be read: {type(error).__name__}: {error}") from error
    raise NotStorableError(f"nothing is stored as {kind!r}")


def _sort_key(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _encode_dict(value: dict[Any, Any]) -> Any:
    if all(type(key) is str for key in value) and _MARK not in value:
        return {key: encode(item) for key, item in value.items()}
    return {_MARK: "dict", "value": [[encode(key), encode(item)] for key, item in value.items()]}


def _encode_object(value: object) -> Any:
    if isinstance(value, FailedPrediction):
        return {_MARK: "failed", "text": encode(value.completion_text), "reward": encode(value.format_reward)}
    if isinstance(value, dspy.Prediction):
        made = {_MARK: "prediction", "class": _name_of(value), "fields": _fields(value), "usage": None}
        return {**made, "completions": _completions(value), "usage": encode(value.get_lm_usage())}
    if type(value) is dspy.Example:
        # Which fields are inputs can only be asked for where it was said.
        example: Any = value
        named = example.inputs().keys() if _says_inputs(value) else None
        return {_MARK: "example", "fields": _fields(value), "inputs": None if named is None else sorted(named)}
    if isinstance(value, enum.Enum):
        return {_MARK: "enum", "class": _name_of(value), "value": value.name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        state = {item.name: encode(getattr(value, item.name)) for item in dataclasses.fields(value)}
        return {_MARK: "dataclass", "class": _name_of(value), "fields": state}
    if isinstance(value, _model_type()):
        return _encode_model(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        return {_MARK: "numpy", "type": str(value.dtype), "value": encode(value.item())}  # type: ignore[attr-defined]  # a numpy scalar
    raise NotStorableError(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")


def _completions(value: dspy.Prediction) -> Any:
    """Return all drawn values by field; the one word ``"own"`` where they are what the fields hold."""
    if value.completions is None:
        return None
    drawn = dict(value.completions.items())
    own = {name: [item] for name, item in value.items(include_dspy=True)}
    same = drawn.keys() == own.keys() and all(len(drawn[n]) == 1 and drawn[n][0] is own[n][0] for n in own)
    return "own" if same else {name: encode(items) for name, items in drawn.items()}


def _says_inputs(example: Any) -> bool:
    try:
        example.inputs()
    except ValueError:
        return False
    return True


def _encode_model(value: Any) -> Any:
    if getattr(value, "__pydantic_private__", None):
        raise NotStorableError(f"{type(value).__qualname__} holds private state")
    fields = {name: encode(getattr(value, name)) for name in type(value).model_fields}
    extra = {name: encode(item) for name, item in (value.model_extra or {}).items()}
    given = sorted(value.model_fields_set)
    return {_MARK: "model", "class": _name_of(value), "fields": fields, "extra": extra, "set": given}


def _fields(value: dspy.Example) -> list[list[Any]]:
    # In their order: reflection shows them in it.
    return [[name, encode(item)] for name, item in value.items(include_dspy=True)]


def _decode_prediction(data: Mapping[str, Any]) -> dspy.Prediction:
    kind = _loaded(data["class"], dspy.Prediction)
    if kind.__init__ is not dspy.Prediction.__init__:
        raise NotStorableError(f"{kind.__qualname__} has a constructor of its own")
    fields = {name: decode(item) for name, item in data["fields"]}
    drawn = data["completions"]
    if drawn == "own":
        drawn = {name: [item] for name, item in fields.items()}
    elif drawn is not None:
        drawn = {name: decode(items) for name, items in drawn.items()}
    made: dspy.Prediction = kind() if drawn is None else kind.from_completions(drawn)
    for name in made.keys(include_dspy=True):
        del made[name]
    for name, item in fields.items():
        made[name] = item
    made.set_lm_usage(decode(data["usage"]))
    return made


def _decode_example(data: Mapping[str, Any]) -> dspy.Example:
    made = dspy.Example()
    for name, item in data["fields"]:
        made[name] = decode(item)
    return made if data["inputs"] is None else made.with_inputs(*data["inputs"])


def _decode_dataclass(data: Mapping[str, Any]) -> Any:
    kind = _loaded(data["class"], object)
    if not dataclasses.is_dataclass(kind):
        raise NotStorableError(f"{data['class']} is no dataclass")
    known = {item.name for item in dataclasses.fields(kind)}
    made: Any = object.__new__(kind)  # type: ignore[arg-type]  # a class, as _loaded returns
    for name, item in data["fields"].items():
        if name in known:
            object.__setattr__(made, name, decode(item))
    return made


def _decode_model(data: Mapping[str, Any]) -> Any:
    kind = _loaded(data["class"], _model_type())
    values, extra = ({name: decode(item) for name, item in data[part].items()} for part in ("fields", "extra"))
    if set(values) != set(kind.model_fields) or kind.__private_attributes__:
        raise NotStorableError(f"{data['class']} has other fields now")
    made = kind.__new__(kind)
    state = {"__dict__": values, "__pydantic_fields_set__": set(data["set"]), "__pydantic_private__": None}
    allowed = kind.model_config.get("extra") == "allow"
    for name, item in {**state, "__pydantic_extra__": extra if allowed else None}.items():
        # What model_construct() does, without calling what the class hooks into it.
        object.__setattr__(made, name, item)
    return made


def _decode_numpy(data: Mapping[str, Any]) -> Any:
    import numpy as np

    kind = np.dtype(data["type"])
    if kind.kind not in "biufc":
        raise NotStorableError(f"{kind} is no type of a number")
    return kind.type(decode(data["value"]))


_OBJECTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "dict": lambda data: {decode(key): decode(item) for key, item in data["value"]},
    "failed": lambda data: FailedPrediction(decode(data["text"]), decode(data["reward"])),
    "prediction": _decode_prediction,
    "example": _decode_example,
    "enum": lambda data: _loaded(data["class"], enum.Enum)[data["value"]],
    "dataclass": _decode_dataclass,
    "model": _decode_model,
    "numpy": _decode_numpy,
}


def _name_of(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find(name) is not kind:
        raise NotStorableError(f"{name} cannot be found again by its name")
    return name


def _loaded(name: object, base: type) -> Any:
    found = _find(name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise NotStorableError(f"no {base.__name__} is loaded as {name!r}")
    return found


def _find(name: object) -> object:
    if not isinstance(name, str):
        return None
    module, _, path = name.partition(":")
    # Never imported: a file must not choose which code runs.
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def _model_type() -> type:
    import pydantic

    return pydantic.BaseModel
