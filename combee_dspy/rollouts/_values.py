"""Values as JSON and back, by their type. What would not come back as it was is refused.

Plain JSON values stand for themselves. Anything else is an object with the one key ``"$"``, which
names how to read it. Reading runs no code of the file's choosing: a class is used only where its
module is loaded already, or the program at hand uses it, and it is an enum, a dataclass or a
pydantic model, and none of its constructors or validators is called. Classes of other packages have
a :class:`~combee_dspy.rollouts.Codec`, or none.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import dspy
import pydantic

from combee_dspy.rollouts._classes import find_class, name_of
from combee_dspy.rollouts._foreign import codec_named, codec_of

__all__ = ["MARK", "NotStorableError", "decode_value", "encode_value", "map_texts", "with_fields"]

E = TypeVar("E", bound=dspy.Example)

MARK = "$"
"""The key of an object that stands for what JSON lacks."""
_LARGEST = 2**63
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotStorableError(Exception):
    """A value cannot be written as JSON, or cannot be read again."""


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
        if all(type(key) is str for key in value) and MARK not in value:
            return {key: _encode(item) for key, item in value.items()}
        return {
            MARK: "dict",
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
        return {MARK: kind.__name__, "value": ordered}
    return _text(_NAMES[kind], value) if kind in _NAMES else _encode_object(value)


def _text(name: str, value: Any) -> dict[str, Any]:
    return {MARK: name, "value": _TEXTS[name][1](value)}


def _encode_object(value: Any) -> dict[str, Any]:
    if type(value) in (dspy.Prediction, dspy.Example):
        named = (
            sorted(value.inputs().keys())
            if getattr(value, "_input_keys", None) is not None
            else None
        )
        pairs = [[name, _encode(item)] for name, item in value.items(include_dspy=True)]
        return {MARK: "fields", "class": type(value).__name__, "fields": pairs, "inputs": named}
    kind = type(value)
    if (codec := codec_of(kind)) is not None:
        return {MARK: "codec", "name": codec.name, "value": _encode(codec.encode(value))}
    name = name_of(kind)
    if find_class(name) is not kind:
        raise NotStorableError(f"{name} cannot be found again by its name")
    if isinstance(value, enum.Enum):
        return {MARK: "enum", "class": name, "value": value.name}
    if dataclasses.is_dataclass(value):
        state = {
            item.name: _encode(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
        return {MARK: "dataclass", "class": name, "fields": state}
    if isinstance(value, pydantic.BaseModel):
        private = value.__pydantic_private__
        state = {name: _encode(getattr(value, name)) for name in kind.model_fields}
        extra = {name: _encode(item) for name, item in (value.model_extra or {}).items()}
        return {
            MARK: "model",
            "class": name,
            "fields": state,
            "extra": extra,
            "set": sorted(value.model_fields_set),
            **({} if private is None else {"private": _encode(private)}),
        }
    raise NotStorableError(f"{name} has no JSON form")


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return what :func:`encode_value` returned with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get(MARK) == "surrogates":
        return _encode(change(json.loads(value["value"])))
    if value.get(MARK) in (*_TEXTS, "enum"):
        return value
    names = (MARK, "class", "inputs", "set", "name") if MARK in value else ()
    return {key: item if key in names else map_texts(item, change) for key, item in value.items()}


def decode_value(value: Any) -> Any:
    """Return what :func:`encode_value` was given.

    Raises:
        NotStorableError: This is nothing that it returns, or it needs a class that is not loaded.
    """
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if MARK not in value:
        return {key: decode_value(item) for key, item in value.items()}
    kind = value[MARK]
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
    instance: Any = object.__new__(kind)
    for name, item in data["fields"].items():
        object.__setattr__(instance, name, decode_value(item))
    return instance


def _decode_model(data: Mapping[str, Any]) -> Any:
    kind = _loaded(data["class"], pydantic.BaseModel)
    values, extra = decode_value(data["fields"]), decode_value(data["extra"])
    private = decode_value(data.get("private"))
    if set(values) != set(kind.model_fields) or set(private or ()) - {*kind.__private_attributes__}:
        raise NotStorableError(f"{data['class']} has other fields now")
    model = kind.__new__(kind)
    # What model_construct() does, without calling what the class hooks into it.
    object.__setattr__(model, "__dict__", values)
    object.__setattr__(model, "__pydantic_fields_set__", set(data["set"]))
    object.__setattr__(model, "__pydantic_private__", private)
    object.__setattr__(
        model, "__pydantic_extra__", extra if kind.model_config.get("extra") == "allow" else None
    )
    return model


def with_fields(kind: type[E], fields: Iterable[tuple[str, Any]]) -> E:
    # One by one: as an argument of the class, `base` would be another example, and `self` no
    # argument at all.
    example = kind()
    for name, item in fields:
        example[name] = decode_value(item)
    return example


def _decode_fields(data: Mapping[str, Any]) -> Any:
    kinds: dict[str, type[dspy.Example]] = {"Prediction": dspy.Prediction, "Example": dspy.Example}
    example = with_fields(kinds[data["class"]], data["fields"])
    return example if data["inputs"] is None else example.with_inputs(*data["inputs"])


def _decode_by_codec(data: Mapping[str, Any]) -> Any:
    codec = codec_named(data["name"])
    if codec is None:
        raise NotStorableError(f"no codec is named {data['name']!r}")
    return codec.decode(decode_value(data["value"]))


def _loaded(name: str, base: type) -> Any:
    kind = find_class(name)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise NotStorableError(f"no {base.__name__} is loaded as {name!r}")
    return kind


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
    "codec": _decode_by_codec,
}
