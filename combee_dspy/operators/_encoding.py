"""Demonstrations as one text component, so that gepa's pool and checkpoints carry them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Demonstration

__all__ = ["decode_demonstrations", "encode_demonstrations"]

_VERSION = 1
_REMEDY = "Give what encode_demonstrations returned."


def encode_demonstrations(demonstrations: Iterable[Demonstration]) -> str:
    """Return canonical JSON with a version: equal demonstrations give equal text.

    Raises:
        ArgumentTypeError: A value is not JSON: not null, a boolean, a finite number,
            a string, a list of such, or a mapping from strings to such.
    """
    rows: list[dict[str, Any]] = []
    for demonstration in demonstrations:
        row: dict[str, Any] = {"inputs": dict(demonstration.inputs), "outputs": dict(demonstration.outputs)}
        if demonstration.example_id is not None:
            row["example_id"] = demonstration.example_id
        rows.append(row)
    try:
        # ASCII keeps lone surrogates and line separators harmless in whatever file this ends up in.
        text = json.dumps(
            {"demonstrations": rows, "version": _VERSION}, sort_keys=True, allow_nan=False, separators=(",", ":")
        )
        same = json.loads(text)["demonstrations"] == rows
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError("demonstrations", rows, f"cannot be written as JSON: {error}", _PLAIN) from error
    if not same:
        # json.dumps accepts tuples and keys that are no strings, and returns them as something else.
        raise ArgumentTypeError("demonstrations", rows, "do not come back from JSON as they were", _PLAIN)
    return text


_PLAIN = "Use plain JSON values: lists rather than tuples, string keys, finite numbers."


def decode_demonstrations(text: str) -> tuple[Demonstration, ...]:
    """Read what :func:`encode_demonstrations` wrote. The empty text means no demonstrations.

    Raises:
        ArgumentValueError: The text is something else.
    """
    if not text:
        return ()
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ArgumentValueError("demonstrations", text, f"is no JSON: {error}", _REMEDY) from error
    if not isinstance(data, dict) or set(data) != {"demonstrations", "version"}:
        raise ArgumentValueError("demonstrations", text, "is no encoded list of demonstrations", _REMEDY)
    if data["version"] != _VERSION or isinstance(data["version"], bool):
        problem = f"has version {data['version']!r} where {_VERSION} is known"
        raise ArgumentValueError("demonstrations", text, problem, _REMEDY)
    rows = data["demonstrations"]
    if not isinstance(rows, list):
        raise ArgumentValueError("demonstrations", text, "holds no list", _REMEDY)
    return tuple(_demonstration(row, text) for row in rows)


def _demonstration(row: object, text: str) -> Demonstration:
    if (
        isinstance(row, Mapping)
        and {"inputs", "outputs"} <= set(row) <= {"inputs", "outputs", "example_id"}
        and isinstance(row["inputs"], dict)
        and isinstance(row["outputs"], dict)
        and isinstance(row.get("example_id", ""), str)
    ):
        return Demonstration(row["inputs"], row["outputs"], row.get("example_id"))
    raise ArgumentValueError("demonstrations", text, "holds an entry that is no demonstration", _REMEDY)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
