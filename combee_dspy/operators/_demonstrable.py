"""From a predictor's run to a demonstration, where that can be written as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER
from dspy.adapters.types.history import History
from pydantic_core import to_jsonable_python

from combee_dspy.records import Demonstration, PredictorRun
from combee_dspy.reflections import estimate_record_tokens

__all__ = ["NotJSON", "canonical", "demonstration_of", "demonstration_tokens", "key_of"]


class NotJSON(ValueError):  # noqa: N818 - says what was found, and never leaves this package
    """A value that no demonstration can hold, such as an image."""


def demonstration_of(run: PredictorRun, signature: Any) -> Demonstration:
    """Return a run's fields as JSON values.

    Pydantic models become mappings, enumeration members their values, tuples lists, dates text.

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
