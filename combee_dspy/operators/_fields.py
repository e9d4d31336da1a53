"""Field descriptions as one text component, and back into a signature."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.guards import own_description

__all__ = ["decode_fields", "describe_fields", "encode_fields", "field_descriptions"]

_VERSION = 1
_REMEDY = "Give what encode_fields returned."


def encode_fields(descriptions: Mapping[str, str]) -> str:
    """Return canonical JSON with a version: equal descriptions give equal text, whatever their order.

    Raises:
        ArgumentTypeError: A name or a description is no text.
    """
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in descriptions.items()):
        remedy = "Give texts by field name."
        raise ArgumentTypeError("field_descriptions", dict(descriptions), "does not map texts to texts", remedy)
    # ASCII keeps lone surrogates and line separators harmless in whatever file this ends up in.
    return json.dumps({"fields": dict(descriptions), "version": _VERSION}, sort_keys=True, separators=(",", ":"))


def decode_fields(text: str, signature: Any = None) -> dict[str, str]:
    """Read what :func:`encode_fields` wrote. The empty text means no descriptions.

    Args:
        text: The encoded component.
        signature: The predictor's ``dspy.Signature``, to refuse fields that it does not have.

    Raises:
        ArgumentValueError: The text is something else, or describes a field that is not there.
    """
    if not text:
        return {}
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ArgumentValueError("field_descriptions", text, f"is no JSON: {error}", _REMEDY) from error
    if not isinstance(data, dict) or set(data) != {"fields", "version"} or not isinstance(data["fields"], dict):
        raise ArgumentValueError("field_descriptions", text, "is no encoded set of descriptions", _REMEDY)
    if data["version"] != _VERSION or isinstance(data["version"], bool):
        problem = f"has version {data['version']!r} where {_VERSION} is known"
        raise ArgumentValueError("field_descriptions", text, problem, _REMEDY)
    fields: dict[str, Any] = data["fields"]
    if not all(isinstance(description, str) for description in fields.values()):
        raise ArgumentValueError("field_descriptions", text, "holds a description that is no text", _REMEDY)
    unknown = [name for name in fields if signature is not None and name not in signature.fields]
    if unknown:
        problem = f"describes {unknown[0]!r}, which the signature does not have"
        raise ArgumentValueError("field_descriptions", text, problem, "Give the predictor that it was made for.")
    return fields


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def field_descriptions(signature: Any) -> dict[str, str]:
    """Return the description of every field of a signature, inputs first.

    A field without one has the empty text: DSPy's stand-in ``${name}`` is not shown to the LM either.
    """
    found = {}
    for name, field in signature.fields.items():
        found[name] = own_description(name, str((field.json_schema_extra or {}).get("desc") or ""))
    return found


def describe_fields(signature: Any, descriptions: Mapping[str, str]) -> Any:
    """Return a signature with these descriptions; the same object where nothing changes.

    Raises:
        ArgumentValueError: A field is described that the signature does not have.
    """
    current = field_descriptions(signature)
    for name, text in descriptions.items():
        if name not in current:
            problem = f"describes {name!r}, which the signature does not have"
            remedy = f"Its fields are {', '.join(current)}."
            raise ArgumentValueError("field_descriptions", dict(descriptions), problem, remedy)
        if own_description(name, text) != current[name]:
            signature = signature.with_updated_fields(name, desc=text)
    return signature
