"""Worked examples that stand in an instruction, found by the names of the fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import dspy
from dspy.adapters.utils import parse_value

from combee_dspy.operators._encoding import demonstration_of
from combee_dspy.records import Demonstration

__all__ = ["take_examples"]

_TITLE = re.compile(r"\W*(?:worked |for )?(?:examples?|instance)\W*\d*\W*", re.IGNORECASE)
# DSPy's own field for a step-by-step answer, which no written example needs to show.
_OPTIONAL = "reasoning"


def take_examples(
    lines: Sequence[str], signature: type[dspy.Signature]
) -> tuple[list[str], list[Demonstration]]:
    """Return lines without the worked examples among them, and these as demonstrations.

    A worked example is a run of lines that name one field each, such as ``Question: How much came
    back?``, together every field of the signature once, with values of the fields' types. A title
    such as ``Example 2:`` before it goes with it.
    """
    left: list[str] = []
    demonstrations: list[Demonstration] = []
    place = 0
    while place < len(lines):
        fields: dict[str, str] = {}
        while place + len(fields) < len(lines):
            name, value = _field(lines[place + len(fields)], signature)
            if not name or name in fields:
                break
            fields[name] = value
        demonstration = _demonstration(fields, signature)
        if demonstration is None:
            left.append(lines[place])
            place += 1
            continue
        if left and _TITLE.fullmatch(left[-1]):
            left.pop()
        demonstrations.append(demonstration)
        place += len(fields)
    return left, demonstrations


def _field(line: str, signature: type[dspy.Signature]) -> tuple[str, str]:
    for name in signature.fields:
        match = re.fullmatch(
            rf"\W*{name.replace('_', '[_ ]')}\W*:[*\s]*(.*\S)\s*", line, re.IGNORECASE
        )
        if match:
            return name, match[1]
    return "", ""


def _demonstration(
    fields: Mapping[str, str], signature: type[dspy.Signature]
) -> Demonstration | None:
    if _OPTIONAL in signature.fields and _OPTIONAL not in fields:
        signature = signature.delete(_OPTIONAL)
    if set(fields) != set(signature.fields):
        return None
    try:
        values = {
            name: parse_value(value, signature.fields[name].annotation)
            for name, value in fields.items()
        }
        return demonstration_of(values, values, signature)
    except ValueError:
        return None
