"""Values of other packages in a journal: numpy's, pictures, tables, and those with a codec of the
user's own.
"""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Codec", "add_codec", "codec_named", "codec_of"]


@dataclass(frozen=True, slots=True)
class Codec:
    """How values of a class are kept in a journal and had again.

    ::

        add_codec(Codec("molecule", Molecule, lambda it: it.smiles, Molecule.from_smiles))

    Attributes:
        name: Stands in journals; unique, and never another class's later.
        kind: The class. Its subclasses are another matter.
        encode: Returns plain values: texts, numbers, bytes, lists, mappings, and whatever else has
            a codec.
        decode: Makes the value again. It is given what a file holds, so it must not run it.
    """

    name: str
    kind: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_BY_NAME: dict[str, Codec] = {}
_BY_KIND: dict[type, Codec] = {}


def add_codec(codec: Codec) -> None:
    """Have values of a class kept in journals, from now on and in this process. From any thread.

    Call it where the class is defined, so that a run that goes on has it too.
    """
    _BY_NAME[codec.name] = _BY_KIND[codec.kind] = codec


def codec_of(kind: type) -> Codec | None:
    """Return the codec for values of a class, if there is one."""
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    package = kind.__module__.partition(".")[0]
    if package == "numpy" and issubclass(kind, np.generic):
        return codec_named("numpy.generic")
    if package == "PIL" and any(base.__qualname__ == "Image" for base in kind.__mro__):
        return codec_named("PIL.Image")
    return codec_named(f"{package}.{kind.__qualname__}")


def codec_named(name: str) -> Codec | None:
    """Return the codec of a name. Of ours, the package that it needs is imported."""
    if name not in _BY_NAME and name in _OURS:
        module, cls, encode, decode = _OURS[name]
        _BY_NAME[name] = Codec(name, getattr(importlib.import_module(module), cls), encode, decode)
    return _BY_NAME.get(name)


def _array(value: Any) -> Any:
    if value.dtype == object:
        return {"shape": list(value.shape), "items": list(value.flat)}
    if value.dtype.kind == "U":
        # As texts: keys in them are masked.
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


def _picture(value: Any) -> Any:
    if "transparency" in value.info:
        raise ValueError("its transparent colour would be lost")
    palette = value.getpalette("RGB") if value.mode == "P" else None
    pixels = zlib.compress(value.tobytes(), 1)
    return {"mode": value.mode, "size": list(value.size), "pixels": pixels, "palette": palette}


def _to_picture(data: Any) -> Any:
    from PIL import Image

    width, height = data["size"]
    # No pixel takes more than 16 bytes: what a file unpacks to is bounded by its size.
    pixels = zlib.decompressobj().decompress(data["pixels"], 16 * width * height)
    picture = Image.frombytes(data["mode"], (width, height), pixels)
    if data["palette"] is not None:
        picture.putpalette(data["palette"])
    return picture


def _column(values: Any) -> Any:
    if isinstance(values.dtype, np.dtype):
        return {"array": values.to_numpy()}
    texts = [None if missing else str(item) for item, missing in zip(values, values.isna())]  # noqa: B905 - one length
    return {"dtype": str(values.dtype), "texts": texts}


def _to_column(data: Any) -> Any:
    import pandas as pd

    return data["array"] if "array" in data else pd.array(data["texts"], dtype=data["dtype"])


def _table(value: Any) -> Any:
    columns = [_column(value.iloc[:, number]) for number in range(value.shape[1])]
    names = {"columns": _column(value.columns), "index": _column(value.index)}
    return _same(value, {**names, "data": columns}, _to_table)


def _to_table(data: Any) -> Any:
    import pandas as pd

    index = pd.Index(_to_column(data["index"]))
    # By number first: two columns may have one name.
    columns = {number: _to_column(column) for number, column in enumerate(data["data"])}
    table = pd.DataFrame(columns, index=index)
    table.columns = pd.Index(_to_column(data["columns"]))
    return table


def _series(value: Any) -> Any:
    parts = {"index": _column(value.index), "values": _column(value), "name": value.name}
    return _same(value, parts, _to_series)


def _to_series(data: Any) -> Any:
    import pandas as pd

    index = pd.Index(_to_column(data["index"]))
    return pd.Series(_to_column(data["values"]), index=index, name=data["name"])


def _same(value: Any, parts: Any, decode: Callable[[Any], Any]) -> Any:
    again = decode(parts)
    names, names_again = ([list(axis.names) for axis in it.axes] for it in (value, again))
    if (
        names != names_again
        or not value.equals(again)
        or str(getattr(value, "dtypes", "")) != str(again.dtypes)
    ):
        raise ValueError("it would not come back as it was")
    return parts


_OURS: dict[str, tuple[str, str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "numpy.ndarray": ("numpy", "ndarray", _array, _to_array),
    "numpy.generic": ("numpy", "generic", np.asarray, lambda array: array[()]),
    "PIL.Image": ("PIL.Image", "Image", _picture, _to_picture),
    "pandas.DataFrame": ("pandas", "DataFrame", _table, _to_table),
    "pandas.Series": ("pandas", "Series", _series, _to_series),
}
