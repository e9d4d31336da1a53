"""Values as JSON and back, by their type. What would not come back as it was is refused.

Plain JSON values stand for themselves. Anything else is an object with the key ``"$"``, which names
how to read it. Reading runs no code that a file chooses: a class is used only where its module is
loaded, or a signature of the program names it, and it is an enum, a dataclass or a pydantic model;
none of its constructors or validators is called. Other classes need a
:class:`~combee_dspy.rollouts.Codec`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import dspy
import pydantic

from combee_dspy.rollouts._classes import find_class, name_of
from combee_dspy.rollouts._codecs import AS_TEXT, PARTS, codec_named, codec_of

E = TypeVar("E", bound=dspy.Example)

MARK = "$"
"""The key of an object that stands for what JSON lacks."""
_LARGEST = 2**63
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARK_OF = {codec.kind: mark for mark, codec in PARTS.items()}
_EXAMPLES: dict[str, type[dspy.Example]] = {"Prediction": dspy.Prediction, "Example": dspy.Example}


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
    if _is_plain(value):
        return value
    kind = type(value)
    if kind is list:
        return [_encode(item) for item in value]
    if kind is dict and MARK not in value and all(type(key) is str for key in value):
        return {key: _encode(item) for key, item in value.items()}
    if (mark := _MARK_OF.get(kind)) is None:
        return _encode_object(value)
    encoded = _encode(PARTS[mark].encode(value))
    if mark in ("set", "frozenset"):  # the same set gives the same text
        encoded.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return {MARK: mark, "value": encoded}


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii() or not _SURROGATE.search(value)
    if kind is int:
        return -_LARGEST <= value < _LARGEST
    return value is None or kind is bool or (kind is float and math.isfinite(value))


def _encode_object(value: Any) -> dict[str, Any]:
    kind = type(value)
    if kind in _EXAMPLES.values():
        has_inputs = getattr(value, "_input_keys", None) is not None
        inputs = sorted(value.inputs().keys()) if has_inputs else None
        pairs = [[name, _encode(item)] for name, item in value.items(include_dspy=True)]
        return {MARK: "fields", "class": kind.__name__, "fields": pairs, "inputs": inputs}
    if (codec := codec_of(kind)) is not None:
        return {MARK: "codec", "name": codec.name, "value": _encode(codec.encode(value))}
    name = name_of(kind)
    if find_class(name) is not kind:
        raise NotStorableError(f"{name} cannot be found again by its name")
    if isinstance(value, enum.Enum):
        return {MARK: "enum", "class": name, "value": value.name}
    if dataclasses.is_dataclass(value):
        fields = {it.name: _encode(getattr(value, it.name)) for it in dataclasses.fields(value)}
        for attribute in getattr(value, "__dict__", {}).keys() - fields.keys():
            if not isinstance(getattr(kind, attribute, None), cached_property):
                raise NotStorableError(f"{attribute!r} of {name} is no field, and would be lost")
        return {MARK: "dataclass", "class": name, "fields": fields}
    if not isinstance(value, pydantic.BaseModel):
        raise NotStorableError(f"{name} has no JSON form")
    private = value.__pydantic_private__
    return {
        MARK: "model",
        "class": name,
        "fields": {name: _encode(getattr(value, name)) for name in kind.model_fields},
        "extra": _encode(value.model_extra or {}),
        "set": sorted(value.model_fields_set),
        **({} if private is None else {"private": _encode(private)}),
    }


def decode_value(value: Any) -> Any:
    """Return the value that :func:`encode_value` encoded.

    Raises:
        NotStorableError: It encoded nothing like this, or a class is needed that is not loaded.
    """
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if MARK not in value:
        return {key: decode_value(item) for key, item in value.items()}
    mark = value[MARK]
    try:
        if mark in PARTS:
            return PARTS[mark].decode(decode_value(value["value"]))
        return _OBJECTS[mark](value)
    except NotStorableError:
        raise
    except Exception as error:
        # Whatever an unknown text leads to, it is the text that is wrong.
        raise NotStorableError(f"{mark} cannot be read: {type(error).__name__}: {error}") from error


def _decode_by_codec(data: Mapping[str, Any]) -> Any:
    codec = codec_named(data["name"])
    if codec is None:
        raise NotStorableError(f"no codec is named {data['name']!r}")
    return codec.decode(decode_value(data["value"]))


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
    allows_extra = kind.model_config.get("extra") == "allow"
    model = kind.__new__(kind)
    # What model_construct() does, without the hooks of the class.
    object.__setattr__(model, "__dict__", values)
    object.__setattr__(model, "__pydantic_fields_set__", set(data["set"]))
    if not issubclass(kind, pydantic.RootModel):  # which has neither
        object.__setattr__(model, "__pydantic_private__", private)
        object.__setattr__(model, "__pydantic_extra__", extra if allows_extra else None)
    return model


def _decode_fields(data: Mapping[str, Any]) -> Any:
    example = with_fields(_EXAMPLES[data["class"]], data["fields"])
    return example if data["inputs"] is None else example.with_inputs(*data["inputs"])


def with_fields(kind: type[E], fields: Iterable[tuple[str, Any]]) -> E:
    """Return an example of a class with encoded fields."""
    # One by one: DSPy takes some names, such as ``base``, for arguments of its own.
    example = kind()
    for name, item in fields:
        example[name] = decode_value(item)
    return example


def _loaded(name: str, base: type) -> Any:
    kind = find_class(name)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise NotStorableError(f"no {base.__name__} is loaded as {name!r}")
    return kind


_OBJECTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "codec": _decode_by_codec,
    "dataclass": _decode_dataclass,
    "enum": lambda data: _loaded(data["class"], enum.Enum)[data["value"]],
    "fields": _decode_fields,
    "model": _decode_model,
}


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return an encoded value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    mark = value.get(MARK)
    if mark == "surrogates":
        return _encode(change(json.loads(value["value"])))
    if mark == "enum" or mark in AS_TEXT:
        return value
    names = () if mark is None else (MARK, "class", "inputs", "set", "name")
    return {key: item if key in names else map_texts(item, change) for key, item in value.items()}
