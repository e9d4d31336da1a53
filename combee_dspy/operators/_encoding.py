"""Demonstrations and field descriptions as text components of a candidate, under keys that selection does not see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Demonstration

__all__ = [
    "decode_demonstrations",
    "decode_fields",
    "demonstrations_key",
    "encode_demonstrations",
    "encode_fields",
    "fields_key",
    "is_hidden",
    "visible",
]

_VERSION = 1
# A predictor's path is made of identifiers, dots and subscripts: it cannot end like these.
_DEMONSTRATIONS = "::demonstrations"
_FIELDS = "::fields"


def demonstrations_key(component: str) -> str:
    """Return the key under which a component's demonstrations stand in a candidate."""
    return component + _DEMONSTRATIONS


def fields_key(component: str) -> str:
    """Return the key under which the descriptions of a component's fields stand in a candidate."""
    return component + _FIELDS


def is_hidden(key: str) -> bool:
    """Whether a key names demonstrations or field descriptions rather than a text that a proposer edits."""
    return key.endswith((_DEMONSTRATIONS, _FIELDS))


def visible(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that component selection may see, in order."""
    return tuple(key for key in keys if not is_hidden(key))


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
    return _encoded("demonstrations", rows)


def encode_fields(descriptions: Mapping[str, str]) -> str:
    """Return canonical JSON with a version: equal descriptions give equal text, whatever their order.

    Raises:
        ArgumentTypeError: A name or a description is no text.
    """
    if not all(isinstance(part, str) for pair in descriptions.items() for part in pair):
        remedy = "Give texts by field name."
        raise ArgumentTypeError("fields", dict(descriptions), "does not map texts to texts", remedy)
    return _encoded("fields", dict(descriptions))


def decode_demonstrations(text: str) -> tuple[Demonstration, ...]:
    """Read what :func:`encode_demonstrations` wrote. The empty text means no demonstrations.

    Raises:
        ArgumentValueError: The text is something else.
    """
    rows = _decoded("demonstrations", text, list) if text else []
    for row in rows:
        if not (
            isinstance(row, dict)
            and {"inputs", "outputs"} <= set(row) <= {"inputs", "outputs", "example_id"}
            and isinstance(row["inputs"], dict)
            and isinstance(row["outputs"], dict)
            and isinstance(row.get("example_id", ""), str)
        ):
            raise _unreadable("demonstrations", text, "holds an entry that is no demonstration")
    return tuple(Demonstration(row["inputs"], row["outputs"], row.get("example_id")) for row in rows)


def decode_fields(text: str) -> dict[str, str]:
    """Read what :func:`encode_fields` wrote. The empty text means no descriptions.

    Raises:
        ArgumentValueError: The text is something else.
    """
    fields: dict[str, str] = _decoded("fields", text, dict) if text else {}
    if not all(isinstance(description, str) for description in fields.values()):
        raise _unreadable("fields", text, "holds a description that is no text")
    return fields


def _encoded(what: str, value: Any) -> str:
    remedy = "Use plain JSON values: lists rather than tuples, string keys, finite numbers."
    try:
        # ASCII keeps lone surrogates and line separators harmless in whatever file this ends up in.
        text = json.dumps({what: value, "version": _VERSION}, sort_keys=True, allow_nan=False, separators=(",", ":"))
        same = json.loads(text)[what] == value
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError(what, value, f"cannot be written as JSON: {error}", remedy) from error
    if not same:
        # json.dumps accepts tuples and keys that are no strings, and returns them as something else.
        raise ArgumentTypeError(what, value, "do not come back from JSON as they were", remedy)
    return text


def _decoded(what: str, text: str, kind: type) -> Any:
    try:
        data = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _unreadable(what, text, f"is no JSON: {error}") from error
    if not isinstance(data, dict) or set(data) != {what, "version"} or not isinstance(data[what], kind):
        raise _unreadable(what, text, f"holds no encoded {what}")
    if data["version"] != _VERSION or isinstance(data["version"], bool):
        raise _unreadable(what, text, f"has version {data['version']!r} where {_VERSION} is known")
    return data[what]


def _unreadable(what: str, text: str, problem: str) -> ArgumentValueError:
    return ArgumentValueError(what, text, problem, f"Give what encode_{what} returned.")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
