"""Answers of an LM that writes for ``dspy.GEPA``'s proposer, whatever it is asked."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

_FIELDS = ("new_instruction", "improved_instruction")
"""The output field of DSPy's proposer, and its name in earlier versions."""


def read_as_gepa(error: AdapterParseError) -> dspy.Prediction | None:
    """Return the answer to a question for one text or one list of texts.

    Scripted LMs in tests and models tuned for ``dspy.GEPA`` answer in the field
    of its proposer. Any other misnamed field may hold a refusal, and is not read.
    """
    outputs = list(error.signature.output_fields.items())
    if len(outputs) != 1 or outputs[0][1].annotation not in (str, list[str]):
        return None
    ((name, field),) = outputs
    for written in _FIELDS:
        text = _parsed(written, str(error.lm_response or ""))
        if text is not None:
            value: Any = text if field.annotation is str else [text]
            return dspy.Prediction(**{name: value})
    return None


def _parsed(field: str, completion: str) -> str | None:
    signature = dspy.Signature(f"question -> {field}: str")
    for adapter in (dspy.ChatAdapter(), dspy.JSONAdapter()):
        with suppress(AdapterParseError):
            return str(adapter.parse(signature, completion)[field])
    return None
