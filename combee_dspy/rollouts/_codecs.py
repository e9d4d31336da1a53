"""How values of each type become JSON and come back: a table that users may extend."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Codec:
    """How values of a class are stored in a journal and read again.

    ::

        add_codec(Codec("molecule", Molecule, lambda it: it.smiles, Molecule.from_smiles))

    Attributes:
        name: The name in journals; unique, and never another class's later.
        kind: The class, without its subclasses.
        encode: Returns what has a codec itself: texts, numbers, bytes, lists, mappings, ….
        decode: Makes the value again. Its argument comes from a file, so it must not run it.
    """

    name: str
    kind: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _array(value: Any) -> Any:
    if value.dtype == object:
        return {"shape": list(value.shape), "items": list(value.flat)}
    if value.dtype.kind == "U":  # as texts, so that keys in them are masked
        return {"shape": list(value.shape), "texts": value.ravel().tolist(), "of": str(value.dtype)}
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return file.getvalue()


def _to_array(data: Any) -> Any:
    if isinstance(data, bytes):
        return np.load(io.BytesIO(data), allow_pickle=False)
    if "texts" in data:
        texts = np.array(data["texts"], dtype=str)
        wide = max(texts.dtype, np.dtype(data["of"]), key=lambda kind: kind.itemsize)
        return texts.astype(wide).reshape(data["shape"])
    array = np.empty(len(data["items"]), dtype=object)
    for index, item in enumerate(data["items"]):
        array[index] = item
    return array.reshape(data["shape"])


AS_TEXT = {
    codec.name: codec
    for codec in (
        Codec("date", datetime.date, str, datetime.date.fromisoformat),
        Codec("datetime", datetime.datetime, str, datetime.datetime.fromisoformat),
        Codec("decimal", decimal.Decimal, str, decimal.Decimal),
        Codec("uuid", uuid.UUID, str, uuid.UUID),
        Codec("bytes", bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
        Codec("float", float, repr, float),  # those that are not finite
        Codec("int", int, str, int),  # those of more than 64 bits
    )
}
"""Types whose values are one text each, which names no person and no key."""

PARTS = {
    **AS_TEXT,
    # Texts with half a character, which UTF-8 lacks.
    "surrogates": Codec("surrogates", str, json.dumps, json.loads),
    "tuple": Codec("tuple", tuple, list, tuple),
    "set": Codec("set", set, list, set),
    "frozenset": Codec("frozenset", frozenset, list, frozenset),
    # Those whose keys are not all texts.
    "dict": Codec("dict", dict, lambda value: [list(pair) for pair in value.items()], dict),
}
"""Types of Python itself that JSON lacks, by the mark of their values."""

_NUMPY_SCALAR = Codec("numpy.generic", np.generic, np.asarray, lambda array: array[()])
_NAMED = {
    "numpy.ndarray": Codec("numpy.ndarray", np.ndarray, _array, _to_array),
    "numpy.generic": _NUMPY_SCALAR,
}


def add_codec(codec: Codec) -> None:
    """Store values of a class in journals, from now on and in this process. Thread-safe.

    Call it where the class is defined, so that a run that goes on has it too.
    """
    _NAMED[codec.name] = codec


def codec_of(kind: type) -> Codec | None:
    """Return the codec for values of a class of a package's or the user's, if there is one."""
    if issubclass(kind, np.generic):
        return _NUMPY_SCALAR
    return next((codec for codec in reversed(tuple(_NAMED.values())) if codec.kind is kind), None)


def codec_named(name: str) -> Codec | None:
    """Return such a codec by its name, if there is one."""
    return _NAMED.get(name)
