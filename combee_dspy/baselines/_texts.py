"""A program's texts: what tells one candidate of any method from another."""

from __future__ import annotations

from typing import Any

import dspy

from combee_dspy.engine.candidates import Candidate, demonstrations_key, fields_key
from combee_dspy.hashing import canonical_json

__all__ = ["same_shape", "texts_of"]


def texts_of(program: dspy.Module, seed: dspy.Module | None = None) -> Candidate:
    """Return a program's texts by component: instructions, demonstrations, changed field descriptions.

    Args:
        program: The program.
        seed: What it was made from. Descriptions of fields are told where they differ from the seed's.
    """
    before = dict(seed.named_predictors()) if seed is not None else {}
    texts: Candidate = {}
    hidden: Candidate = {}
    for name, predictor in program.named_predictors():
        texts[name] = str(predictor.signature.instructions)
        if predictor.demos:
            hidden[demonstrations_key(name)] = canonical_json([_shown(demo, predictor) for demo in predictor.demos])
        fields = _descriptions(predictor)
        if name in before and fields != _descriptions(before[name]):
            hidden[fields_key(name)] = canonical_json(fields)
    return {**texts, **hidden}


def _shown(demo: Any, predictor: Any) -> dict[str, Any]:
    # DSPy's teleprompters leave marks on demonstrations, which no prompt shows.
    return {name: value for name, value in dict(demo).items() if name in predictor.signature.fields}


def _descriptions(predictor: Any) -> dict[str, str]:
    fields = predictor.signature.fields.items()
    return {name: str((info.json_schema_extra or {}).get("desc", "")) for name, info in fields}


def same_shape(one: Any, other: dspy.Module) -> bool:
    """Return whether a module could be a candidate made from a program: same class, predictors and fields."""
    return type(one) is type(other) and _shape(one) == _shape(other)


def _shape(program: Any) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [
        (name, tuple(predictor.signature.input_fields), tuple(predictor.signature.output_fields))
        for name, predictor in program.named_predictors()
    ]
