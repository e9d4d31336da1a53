"""Demonstrations and field descriptions as texts: canonical JSON with a version. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import dspy
from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER
from dspy.adapters.types.history import History
from pydantic_core import to_jsonable_python

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Demonstration
from combee_dspy.reflections import estimate_record_tokens

_VERSION = 1


def encode_demonstrations(demonstrations: Iterable[Demonstration]) -> str:
    """Return canonical JSON with a version: equal demonstrations give equal text.

    Raises:
        ArgumentTypeError: A value is not JSON: not null, a boolean, a finite number, a string, a
            list of such, or a mapping from strings to such.
    """
    rows: list[dict[str, Any]] = []
    for demonstration in demonstrations:
        row = {"inputs": dict(demonstration.inputs), "outputs": dict(demonstration.outputs)}
        source = demonstration.example_id
        rows.append(row if source is None else {**row, "example_id": source})
    return _encode("demonstrations", rows)


def encode_fields(descriptions: Mapping[str, str]) -> str:
    """Return canonical JSON with a version: equal descriptions give equal text.

    Raises:
        ArgumentTypeError: A name or a description is no text.
    """
    return _encode("fields", dict(descriptions))


def decode_demonstrations(text: str) -> tuple[Demonstration, ...]:
    """Read what :func:`encode_demonstrations` wrote. The empty text means no demonstrations.

    Raises:
        ArgumentValueError: The text is something else.
    """
    return tuple(Demonstration(**row) for row in _decode("demonstrations", text)) if text else ()


def decode_fields(text: str) -> dict[str, str]:
    """Read what :func:`encode_fields` wrote. The empty text means no descriptions.

    Raises:
        ArgumentValueError: The text is something else.
    """
    return _decode("fields", text) if text else {}


def _holds(what: str, value: object) -> bool:
    if what == "fields":
        texts = [*value, *value.values()] if isinstance(value, dict) else [None]
        return all(isinstance(text, str) for text in texts)
    return isinstance(value, list) and all(
        isinstance(row, dict)
        and row.keys() - {"example_id"} == {"inputs", "outputs"}
        and isinstance(row["inputs"], dict)
        and isinstance(row["outputs"], dict)
        for row in value
    )


def _encode(what: str, value: object) -> str:
    data = {what: value, "version": _VERSION}
    try:
        # ASCII keeps lone surrogates and line separators harmless in whatever file this ends up in.
        text = json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"))
        # It takes tuples and keys that are no strings, and returns them as something else.
        if json.loads(text)[what] == value and _holds(what, value):
            return text
        problem = "do not come back from JSON as they were"
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"cannot be written as JSON: {error}"
    remedy = "Use plain JSON values: lists rather than tuples, string keys, finite numbers."
    raise ArgumentTypeError(what, value, problem, remedy)


def _decode(what: str, text: str) -> Any:
    remedy = f"Give what encode_{what} wrote."
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentValueError(what, text, f"is no JSON: {error}", remedy) from error
    if (
        isinstance(data, dict)
        and data.keys() == {what, "version"}
        and data["version"] == _VERSION
        and _holds(what, data[what])
    ):
        return data[what]
    raise ArgumentValueError(what, text, f"holds no {what} of version {_VERSION}", remedy)


class NotJSON(ValueError):  # noqa: N818 - never leaves this package
    """A value that no demonstration can hold, such as an image."""


def demonstration_of(
    inputs: Mapping[str, object],
    outputs: Mapping[str, object],
    signature: type[dspy.Signature],
    example_id: str | None = None,
) -> Demonstration:
    """Return a signature's fields as JSON values: models as mappings, enums as values.

    Raises:
        NotJSON: An input or output field is missing, or its value cannot be written as JSON.
    """
    return Demonstration(
        _json_values(inputs, signature.input_fields),
        _json_values(outputs, signature.output_fields),
        example_id,
    )


def _json_values(values: Mapping[str, object], names: Mapping[str, object]) -> dict[str, Any]:
    missing = [name for name in names if values.get(name) is None]
    if missing:
        raise NotJSON(f"field {missing[0]!r} has no value")
    return {name: _json_value(values[name], name) for name in names}


def _json_value(value: object, name: str) -> Any:
    if isinstance(value, str):
        return value
    try:
        text = json.dumps(to_jsonable_python(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJSON(f"field {name!r} holds a {type(value).__name__}: {error}") from error
    # An image would come back as text, a history as a mapping: no prompt would show what they are.
    if isinstance(value, History) or CUSTOM_TYPE_START_IDENTIFIER in text:
        raise NotJSON(f"field {name!r} holds a {type(value).__name__} of DSPy's")
    return json.loads(text)


def demonstration_tokens(demonstrations: Iterable[Demonstration]) -> int:
    """Estimate the tokens that demonstrations take in a prompt."""
    return sum(
        estimate_record_tokens(demonstration.inputs) + estimate_record_tokens(demonstration.outputs)
        for demonstration in demonstrations
    )


def canonical(value: object) -> str:
    """Return canonical JSON of a JSON value; it tells whether two demonstrations ask the same."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
