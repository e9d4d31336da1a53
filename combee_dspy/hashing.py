"""Hashes rows by their content, so that splits can be pinned and compared.

The hash of a row is the SHA-256 of its canonical JSON: UTF-8, keys sorted, no
white space, non-ASCII escaped, floats as Python's ``repr`` writes them. A row
of plain JSON values therefore hashes to
``sha256(json.dumps(row, sort_keys=True, separators=(",", ":")))``, which
anyone can recompute. Values that JSON lacks are first replaced:

| value | in its place |
| --- | --- |
| ``dspy.Example``, ``dspy.Prediction`` | its fields, inputs and labels alike, without ``dspy_…`` |
| pydantic model (``dspy.Image``, …) | class name and ``model_dump`` |
| dataclass, other object without a ``repr`` of its own | class name and state |
| bytes, array, picture | SHA-256 of the bytes, with type, shape and mode |
| array of objects, tensor | its members |
| table or column of pandas, pyarrow or polars | its columns with their types, and its index |
| set | its members, sorted by their canonical JSON |
| date, ``Decimal``, ``Fraction``, ``UUID``, path, enum, NaN, ±inf | class name and text |
| anything else | class name and ``repr`` |

Nothing depends on the process or on Python's ``hash``, and on memory addresses only where an
object has nothing else (:func:`holds_address`).
Functions here are pure and safe to call from any thread.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError

__all__ = ["canonical_json", "digest_of", "holds_address", "row_hash"]

_ADDRESS = re.compile(r'"\$type":"[^"]*","value":"(?:[^"\\]|\\.)* at 0x[0-9a-f]+')
_AS_THEY_ARE = {str, int, bool, type(None)}


def row_hash(record: object) -> str:
    """Return the SHA-256 (64 hex digits) of one row: a mapping, or a ``dspy.Example``.

    All fields count, inputs and labels. Which fields are inputs does not.

    Raises:
        ArgumentTypeError: ``record`` is neither.
    """
    fields = _fields(record)
    if fields is None:
        remedy = "Give a dspy.Example or a mapping from field names to values."
        raise ArgumentTypeError("record", record, "is no row", remedy)
    return hashlib.sha256(canonical_json(fields).encode()).hexdigest()


def digest_of(hashes: Iterable[str]) -> str:
    """Return the SHA-256 of row hashes in their order, one a line.

    The order counts: minibatches are drawn from it.
    """
    return hashlib.sha256("".join(f"{item}\n" for item in hashes).encode()).hexdigest()


def holds_address(record: object) -> bool:
    """Return whether a row's hash depends on where a value of it lies in memory.

    So it is with functions, locks and generators, which have nothing else that tells one from
    another: the row has another hash in each process.
    """
    return _ADDRESS.search(canonical_json(record)) is not None


def canonical_json(value: object) -> str:
    """Return the canonical JSON of any value (see the module's table)."""
    return json.dumps(_plain(value, ()), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _fields(record: Any) -> dict[Any, Any] | None:
    # Duck-typed: hashing must not cost the import of dspy.
    is_example = callable(getattr(record, "with_inputs", None)) and callable(
        getattr(record, "items", None)
    )
    return dict(record.items()) if is_example or isinstance(record, Mapping) else None


def _plain(value: object, path: tuple[int, ...]) -> object:
    """Return a value as JSON; ``path`` holds the ids of the containers it is in."""
    if isinstance(value, float) and not math.isfinite(value):
        return _tagged(value, str(float(value)))
    if isinstance(value, enum.Enum):
        return _tagged(value, value.name)
    if isinstance(value, (str, int, float, type(None))):
        return value
    if id(value) in path:
        return {"$cycle": len(path) - path.index(id(value))}
    return _container(value, (*path, id(value)))


def _container(value: object, path: tuple[int, ...]) -> object:
    fields = _fields(value)
    if fields is not None:
        if {*map(type, fields)} <= {str} or all(isinstance(key, str) for key in fields):
            return {key: _plain(item, path) for key, item in fields.items()}
        return {
            "$pairs": _sorted(
                [_plain(key, path), _plain(item, path)] for key, item in fields.items()
            )
        }
    if isinstance(value, (list, tuple)):
        kinds = {*map(type, value)}
        if kinds <= _AS_THEY_ARE or (kinds == {float} and all(map(math.isfinite, value))):
            return list(value)
        return [_plain(item, path) for item in value]
    if isinstance(value, AbstractSet):
        return {"$set": _sorted(_plain(item, path) for item in value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _tagged(value, hashlib.sha256(value).hexdigest())
    return _tagged(value, repr(value)) if isinstance(value, type) else _object(value, path)


def _object(value: object, path: tuple[int, ...]) -> object:
    if callable(dump := getattr(value, "model_dump", None)):
        return _tagged(value, _plain(dump(), path))
    if dataclasses.is_dataclass(value):
        state = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return _tagged(value, _plain(state, path))
    if callable(raw := getattr(value, "tobytes", None)):
        if getattr(value, "shape", None) == () and callable(item := getattr(value, "item", None)):
            return _plain(item(), path)
        shape = [str(getattr(value, name, "")) for name in ("dtype", "shape", "mode", "size")]
        # The bytes of an array of objects, such as pandas makes of a column of lists, are
        # addresses.
        objects = getattr(getattr(value, "dtype", None), "hasobject", False)
        content = _plain(value.tolist(), path) if objects else hashlib.sha256(raw()).hexdigest()  # type: ignore[attr-defined]
        colours = getattr(value, "getpalette", lambda: None)()
        return _tagged(value, [*shape, content, *([colours] if colours else [])])
    if (cells := _cells(value)) is not None:
        return _tagged(value, _plain(cells, path))
    if type(value).__repr__ is object.__repr__:
        # The default repr is a memory address; the state is what makes the object.
        return _tagged(value, _plain(value.__getstate__(), path))
    return _tagged(value, repr(value))


def _cells(value: Any) -> object:
    """Return what a table, a column or a tensor holds; ``None`` for anything else.

    Their own ``repr`` leaves out what does not fit a screen, and tells no text from a number.
    """
    # By the names of their modules: hashing must not cost the import of pandas, and a class of the
    # user's may have methods of the same names.
    libraries = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    if {"pandas", "polars"} & libraries and callable(frame := getattr(value, "to_frame", None)):
        return ["column", _cells(frame())]
    if "pandas" in libraries and hasattr(value, "iloc"):
        labels = [value.columns.tolist(), list(value.index.names), value.index.to_numpy()]
        # Arrays, of which numbers and dates are hashed as bytes: each rollout hashes its row.
        columns = [column.to_numpy() for _, column in value.items()]
        return [list(map(str, value.dtypes)), labels, columns]
    if "pyarrow" in libraries and hasattr(value, "to_pylist"):
        kind = value.schema if hasattr(value, "schema") else value.type
        return [str(kind), [column.to_pylist() for column in getattr(value, "columns", [value])]]
    if "polars" in libraries and callable(by_column := getattr(value, "to_dict", None)):
        return [str(value.schema), by_column(as_series=False)]
    if hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "tolist"):
        return [str(value.dtype), str(value.shape), value.tolist()]
    return None


def _tagged(value: object, content: object) -> dict[str, object]:
    return {"$type": f"{type(value).__module__}.{type(value).__qualname__}", "value": content}


def _sorted(values: Iterable[object]) -> list[object]:
    return sorted(values, key=lambda value: json.dumps(value, sort_keys=True))
