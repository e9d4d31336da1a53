"""From a predictor's run to a demonstration, where that can be written as JSON."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from typing import Any

import pydantic

from combee_dspy.records import Demonstration, PredictorRun
from combee_dspy.reflections import estimate_record_tokens

__all__ = ["NotJSON", "canonical", "demonstration_of", "demonstration_tokens", "key_of"]

_DEPTH = 32


class NotJSON(ValueError):  # noqa: N818 - says what was found, and never leaves this package
    """A value that no demonstration can hold, such as an image."""


def demonstration_of(run: PredictorRun, signature: Any) -> Demonstration:
    """Return a run's fields as JSON values.

    Pydantic models become mappings, enumeration members their values, tuples lists.

    Args:
        run: One call of the predictor.
        signature: Its ``dspy.Signature``; fields it does not have are left out.

    Raises:
        NotJSON: An input or output field is missing, or its value cannot be written as JSON.
    """
    return Demonstration(
        _fields(run.inputs, signature.input_fields), _fields(run.outputs, signature.output_fields), run.example_id
    )


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


def _json(value: Any, name: str, depth: int = _DEPTH) -> Any:
    if depth == 0:
        raise NotJSON(f"field {name!r} is nested too deeply")
    if isinstance(value, enum.Enum):
        return _json(value.value, name, depth - 1)
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json(item, name, depth - 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json(item, name, depth - 1) for key, item in value.items()}
    if isinstance(value, pydantic.BaseModel) and not _belongs_to_dspy(value):
        try:
            return _json(value.model_dump(mode="json"), name, depth - 1)
        except (TypeError, ValueError) as error:
            raise NotJSON(f"field {name!r} holds a {type(value).__name__} that cannot be dumped: {error}") from error
    raise NotJSON(f"field {name!r} holds a {type(value).__name__}")


def _belongs_to_dspy(value: object) -> bool:
    from dspy.adapters.types.base_type import Type
    from dspy.adapters.types.history import History

    return isinstance(value, (Type, History))
