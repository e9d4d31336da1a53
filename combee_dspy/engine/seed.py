"""The seed candidate: a program's texts as components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from combee_dspy.engine.candidates import Candidate, demonstrations_key, fields_key
from combee_dspy.operators import (
    NotJSON,
    Operator,
    demonstration_of,
    encode_demonstrations,
    encode_fields,
    field_descriptions,
)
from combee_dspy.records import Demonstration, PredictorRun

__all__ = ["seed_candidate"]


def seed_candidate(student: dspy.Module, code: Mapping[str, str], operators: Sequence[Operator]) -> Candidate:
    """Return the student's texts by component.

    Args:
        student: The program.
        code: Source of its ``dspy.Flex`` parts by path.
        operators: Where one of them edits demonstrations, each predictor's
            demonstrations become a component too, unless they hold values that
            JSON cannot carry or lack a field of the signature. Where one edits
            field descriptions, these become a component as well.

    Returns:
        Instructions by predictor, then code by path, then demonstrations, then field descriptions.
    """
    predictors = list(student.named_predictors())
    seed: Candidate = {name: predictor.signature.instructions for name, predictor in predictors}
    seed.update(code)
    if any(operator.edits_demonstrations for operator in operators):
        for name, predictor in predictors:
            present = _demonstrations(predictor)
            if present is not None:
                seed[demonstrations_key(name)] = encode_demonstrations(present)
    if any(operator.edits_fields for operator in operators):
        for name, predictor in predictors:
            seed[fields_key(name)] = encode_fields(field_descriptions(predictor.signature))
    return seed


def _demonstrations(predictor: Any) -> tuple[Demonstration, ...] | None:
    """Return a predictor's demonstrations; ``None`` where one is incomplete or JSON cannot carry it."""
    signature, found = predictor.signature, []
    for demo in predictor.demos:
        # DSPy's teleprompters leave marks on demonstrations ("augmented"), which no prompt shows.
        fields = {name: value for name, value in demo.items() if name in signature.fields}
        if len(fields) < len(signature.fields):
            return None
        try:
            found.append(demonstration_of(PredictorRun("", fields, fields, 0.0), signature))
        except NotJSON:
            return None
    return tuple(replace(demo, example_id=None) for demo in found)
