"""Demonstrations, and field descriptions, as text components of a candidate, under keys that selection does not see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER
from dspy.adapters.types.history import History
from pydantic_core import to_jsonable_python

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Demonstration
from combee_dspy.reflections import estimate_record_tokens

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
    return _encoded("fields", dict(descriptions))


def decode_demonstrations(text: str) -> tuple[Demonstration, ...]:
    """Read what :func:`encode_demonstrations` wrote. The empty text means no demonstrations.

    Raises:
        ArgumentValueError: The text is something else.
    """
    return tuple(Demonstration(**row) for row in _decoded("demonstrations", text)) if text else ()


def decode_fields(text: str) -> dict[str, str]:
    """Read what :func:`encode_fields` wrote. The empty text means no descriptions.

    Raises:
        ArgumentValueError: The text is something else.
    """
    return _decoded("fields", text) if text else {}


def _holds(what: str, value: Any) -> bool:
    if what == "fields":
        return isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair)
    return isinstance(value, list) and all(
        isinstance(row, dict)
        and {"inputs", "outputs"} <= set(row) <= {"inputs", "outputs", "example_id"}
        and isinstance(row["inputs"], dict)
        and isinstance(row["outputs"], dict)
        for row in value
    )


def _encoded(what: str, value: Any) -> str:
    try:
        # ASCII keeps lone surrogates and line separators harmless in whatever file this ends up in.
        text = json.dumps({what: value, "version": _VERSION}, sort_keys=True, allow_nan=False, separators=(",", ":"))
        # json.dumps accepts tuples and keys that are no strings, and returns them as something else.
        if json.loads(text)[what] == value and _holds(what, value):
            return text
        problem = "do not come back from JSON as they were"
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"cannot be written as JSON: {error}"
    remedy = "Use plain JSON values: lists rather than tuples, string keys, finite numbers."
    raise ArgumentTypeError(what, value, problem, remedy)


def _decoded(what: str, text: str) -> Any:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentValueError(what, text, f"is no JSON: {error}", f"Give what encode_{what} wrote.") from error
    known = isinstance(data, dict) and set(data) == {what, "version"} and data["version"] == _VERSION
    if not known or not _holds(what, data[what]):
        problem = f"holds no {what} of version {_VERSION}"
        raise ArgumentValueError(what, text, problem, f"Give what encode_{what} wrote.")
    return data[what]


class NotJSON(ValueError):  # noqa: N818 - says what was found, and never leaves this package
    """A value that no demonstration can hold, such as an image."""


def demonstration_of(
    inputs: Mapping[str, Any], outputs: Mapping[str, Any], signature: Any, example_id: str | None = None
) -> Demonstration:
    """Return the fields of a ``dspy.Signature`` as JSON values: models as mappings, enum members as their values.

    Raises:
        NotJSON: An input or output field is missing, or its value cannot be written as JSON.
    """
    return Demonstration(_fields(inputs, signature.input_fields), _fields(outputs, signature.output_fields), example_id)


def demonstration_tokens(demonstration: Demonstration) -> int:
    """Estimate the tokens that a demonstration takes in a prompt."""
    return estimate_record_tokens(demonstration.inputs) + estimate_record_tokens(demonstration.outputs)


def key_of(demonstration: Demonstration) -> str:
    """Return the inputs as canonical JSON: two demonstrations of one question are one too many."""
    return canonical(demonstration.inputs)


def canonical(value: Any) -> str:
    """Return canonical JSON of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _fields(values: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name in names if values.get(name) is None]
    if missing:
        raise NotJSON(f"field {missing[0]!r} has no value")
    return {name: _json(values[name], name) for name in names}


def _json(value: Any, name: str) -> Any:
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
