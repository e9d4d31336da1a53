"""How values of each type become JSON and come back: a table that users may extend.

The packages of pictures (PIL) and tables (pandas) are used where a program has loaded them. Nothing
here imports them.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import sys
import uuid
import zlib
import zoneinfo
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


def _moment(value: Any) -> str:
    zone = value.tzinfo
    if zone is None or type(zone) is datetime.timezone:
        return str(value)
    if type(zone) is not zoneinfo.ZoneInfo or zone.key is None:
        raise ValueError("the rules of its time zone would be lost")
    return f"{value}[{zone.key}]"  # as in RFC 9557


def _to_moment(text: str) -> datetime.datetime:
    moment, _, zone = text.rstrip("]").partition("[")
    value = datetime.datetime.fromisoformat(moment)
    return value.astimezone(zoneinfo.ZoneInfo(zone)) if zone else value


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


def _picture(picture: Any) -> Any:
    if getattr(picture, "n_frames", 1) > 1:
        raise ValueError("all but one of the picture's frames would be lost")
    palette = picture.getpalette("RGB") if picture.mode in ("P", "PA") else None
    if "transparency" in picture.info or (palette and picture.palette.mode != "RGB"):
        raise ValueError("the picture's transparent colours would be lost")
    pixels = zlib.compress(picture.tobytes(), 1)
    return {"mode": picture.mode, "size": list(picture.size), "pixels": pixels, "palette": palette}


def _to_picture(data: Any) -> Any:
    width, height = data["size"]
    # A pixel has 16 bytes at most, so the size bounds what a hostile file unpacks to. A bound of 0
    # would be none.
    longest = max(1, 16 * width * height)
    pixels = zlib.decompressobj().decompress(data["pixels"], longest)
    picture = sys.modules["PIL.Image"].frombytes(data["mode"], (width, height), pixels)
    if data["palette"] is not None:
        picture.putpalette(data["palette"])
    return picture


def _column(values: Any) -> Any:
    if isinstance(values.dtype, np.dtype):
        return {"array": values.to_numpy()}
    cells = zip(values, values.isna(), strict=True)
    texts = [None if is_missing else str(item) for item, is_missing in cells]
    return {"dtype": str(values.dtype), "texts": texts}


def _to_column(data: Any) -> Any:
    if "array" in data:
        return data["array"]
    return sys.modules["pandas"].array(data["texts"], dtype=data["dtype"])


def _table(table: Any) -> Any:
    if table.attrs:
        raise ValueError("the table's attrs would be lost")
    data = [_column(table.iloc[:, number]) for number in range(table.shape[1])]
    parts = {"columns": _column(table.columns), "index": _column(table.index), "data": data}
    sys.modules["pandas"].testing.assert_frame_equal(_to_table(parts), table, check_exact=True)
    return parts


def _to_table(data: Any) -> Any:
    pandas = sys.modules["pandas"]
    # Columns by number first: two may have one name.
    columns = {number: _to_column(column) for number, column in enumerate(data["data"])}
    table = pandas.DataFrame(columns, index=pandas.Index(_to_column(data["index"])))
    table.columns = pandas.Index(_to_column(data["columns"]))
    return table


def _series(series: Any) -> Any:
    if series.attrs:
        raise ValueError("the series' attrs would be lost")
    parts = {"index": _column(series.index), "values": _column(series), "name": series.name}
    sys.modules["pandas"].testing.assert_series_equal(_to_series(parts), series, check_exact=True)
    return parts


def _to_series(data: Any) -> Any:
    pandas = sys.modules["pandas"]
    index = pandas.Index(_to_column(data["index"]))
    return pandas.Series(_to_column(data["values"]), index=index, name=data["name"])


AS_TEXT = {
    codec.name: codec
    for codec in (
        Codec("date", datetime.date, str, datetime.date.fromisoformat),
        Codec("datetime", datetime.datetime, _moment, _to_moment),
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
# By name in journals: the module, the class in it, how to encode and how to decode.
_LOADED_LATER = {
    "PIL.Image": ("PIL.Image", "Image", _picture, _to_picture),
    "pandas.DataFrame": ("pandas", "DataFrame", _table, _to_table),
    "pandas.Series": ("pandas", "Series", _series, _to_series),
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
    own = (codec for codec in reversed(tuple(_NAMED.values())) if codec.kind is kind)
    package = kind.__module__.partition(".")[0]
    name = f"{package}.{kind.__qualname__}"
    if package == "PIL" and any(base.__qualname__ == "Image" for base in kind.__mro__):
        name = "PIL.Image"  # a picture of a file has a class by the file's format
    return next(own, None) or codec_named(name)


def codec_named(name: str) -> Codec | None:
    """Return such a codec by its name, if there is one and its package is loaded."""
    if name in _NAMED or name not in _LOADED_LATER:
        return _NAMED.get(name)
    module, class_name, encode, decode = _LOADED_LATER[name]
    package = sys.modules.get(module)
    return Codec(name, getattr(package, class_name), encode, decode) if package else None
