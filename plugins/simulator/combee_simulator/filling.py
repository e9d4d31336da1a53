"""Turn what the simulated model wants to say into the form that was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from combee_simulator.shapes import OutputField, RequestShape, Style

__all__ = ["REASONING", "REASONING_FIELDS", "answer_value", "filler", "lesson_value", "render"]

REASONING = "Simulated reasoning: the instruction and the examples decide."
REASONING_FIELDS = ("reasoning", "rationale")
"""Names of output fields in which a model reasons before it answers."""

_LESSON_NAMES = ("lesson", "content", "text", "bullet", "insight", "rule", "value")
_DEEPEST = 8


def answer_value(field: OutputField, answer: str) -> Any:
    """Return a task's answer in the type that its field asks for, else as text."""
    for option in field.options:
        if str(option).casefold() == answer.strip().casefold():
            return option
    number = {"int": int, "float": float}.get(field.type)
    if number is not None:
        try:
            return number(float(answer.replace(",", "")))
        except (ValueError, OverflowError):
            return answer
    if field.type == "bool":
        return answer.strip().casefold() in ("true", "yes", "1")
    if field.is_list:
        return [answer]
    return answer


def lesson_value(field: OutputField, text: str, lines: Sequence[str]) -> Any:
    """Return lessons with the type that a field asks for.

    Args:
        field: The field.
        text: The lessons as running text, for a field that takes text.
        lines: The same, one element a lesson, for a field that takes a list.
    """
    if not field.is_list:
        return text if field.is_text else filler(field)
    schema = field.schema or {}
    items = _resolved(schema.get("items"), schema.get("$defs"))
    if isinstance(items.get("properties"), dict):
        return [_from_schema(items, schema.get("$defs"), line) for line in lines]
    return list(lines)


def filler(field: OutputField) -> Any:
    """Return a harmless value for a field that holds neither the answer nor lessons."""
    if field.options:
        return "finish" if "finish" in field.options else field.options[0]
    if field.is_text:
        return REASONING
    if field.is_list:
        return []
    if field.type in ("int", "float", "bool"):
        return {"int": 1, "float": 1.0, "bool": True}[field.type]
    if field.schema:
        return _from_schema(field.schema, field.schema.get("$defs"), REASONING)
    return {} if field.type.startswith("dict") else REASONING


def render(shape: RequestShape, values: Mapping[str, Any]) -> str:
    """Lay out the values as the request asked."""
    if shape.style is Style.JSON:
        return json.dumps(dict(values), ensure_ascii=False)
    parts = [f"[[ ## {name} ## ]]\n{_written(value)}" for name, value in values.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _resolved(schema: Any, definitions: Any) -> Mapping[str, Any]:
    if not isinstance(schema, dict):
        return {}
    reference, choices = schema.get("$ref"), schema.get("anyOf")
    if isinstance(choices, list):
        plain = [
            choice
            for choice in choices
            if isinstance(choice, dict) and choice.get("type") != "null"
        ]
        schema = plain[0] if plain else {}
        reference = schema.get("$ref")
    if isinstance(reference, str):
        target = (
            definitions.get(reference.rpartition("/")[2]) if isinstance(definitions, dict) else None
        )
        # One step only: a definition that is itself a reference may be a loop.
        return target if isinstance(target, dict) else {}
    return schema


def _from_schema(schema: Any, definitions: Any, text: str, depth: int = 0) -> Any:
    resolved = _resolved(schema, definitions)
    options = resolved.get("enum")
    if "const" in resolved:
        return resolved["const"]
    if isinstance(options, list) and options:
        return options[0]
    properties = resolved.get("properties")
    if isinstance(properties, dict) and depth < _DEEPEST:
        home = _home(properties)
        return {
            name: _from_schema(part, definitions, text if name == home else "general", depth + 1)
            for name, part in properties.items()
        }
    kind = resolved.get("type", "string")
    empty: dict[str, Any] = {
        "array": [],
        "integer": 0,
        "number": 0.0,
        "boolean": True,
        "null": None,
        "object": {},
    }
    return empty.get(kind, text) if isinstance(kind, str) else text


def _home(properties: Mapping[str, Any]) -> str | None:
    plain = [
        name for name, part in properties.items() if isinstance(part, dict) and "enum" not in part
    ]
    for hint in _LESSON_NAMES:
        for name in plain:
            if hint in name.lower():
                return name
    return plain[0] if plain else None
