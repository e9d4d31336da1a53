"""Worked examples inside an instruction, turned into demonstrations and checked word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic

from combee_dspy.operators._base import OperatorInput
from combee_dspy.operators._demonstrable import NotJSON, demonstration_of, key_of
from combee_dspy.records import Demonstration, PredictorRun, Refusal

__all__ = ["WorkedExample", "may_hold_examples", "take_examples"]

_SIGN = re.compile(r"\bexamples?\b|\be\.\s?g\.|\bfor instance\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_FILLING = frozenset(
    ("example", "examples", "input", "inputs", "output", "outputs", "for", "instance", "the", "a", "an", "is", "and")
)
# A few words that introduce an example may go with it; a rule among its lines may not.
_LEFT_OVER = 4
# DSPy's own field for a step-by-step answer, which no written example needs to show.
_OPTIONAL = "reasoning"


class WorkedExample(pydantic.BaseModel):
    """One example that stands in an instruction."""

    first_line: int = pydantic.Field(description="Number of its first line.")
    last_line: int = pydantic.Field(description="Number of its last line.")
    inputs: dict[str, Any] = pydantic.Field(description="Its input fields, copied word for word.")
    outputs: dict[str, Any] = pydantic.Field(description="Its output fields, copied word for word.")


def may_hold_examples(lines: Sequence[str], signature: Any) -> bool:
    """Whether it is worth a call to look for examples: lines name at least two fields, or an example by that word."""
    if sum(1 for line in lines if line.strip()) < 2:
        return False
    named = {
        name
        for name in signature.fields
        for line in lines
        if re.match(rf"\W*{re.escape(name).replace('_', '[_ ]')}\W*:", line, re.IGNORECASE)
    }
    return len(named) > 1 or any(_SIGN.search(line) for line in lines)


def take_examples(
    lines: Sequence[str], found: Sequence[WorkedExample], given: OperatorInput
) -> tuple[list[str], list[Demonstration]] | Refusal:
    """Return the lines without the examples, and the examples as demonstrations, or what is wrong.

    An example must consist of the signature's fields with values of their types; every
    value must stand in its lines word for word; and its lines must say next to nothing else,
    so that no rule leaves the instruction with them.

    Args:
        lines: The instruction's own lines.
        found: What an LM answered.
        given: The signature, and the demonstrations that are there already.
    """
    if not found:
        return Refusal("no example was found in the instruction")
    taken: set[int] = set()
    known = {key_of(demonstration) for demonstration in given.demonstrations}
    made: list[Demonstration] = []
    for example in found:
        places = range(example.first_line - 1, example.last_line)
        if not places or places[0] < 0 or places[-1] >= len(lines) or taken & set(places):
            where = f"lines {example.first_line} to {example.last_line}"
            return Refusal(f"an example is said to stand in {where}, which cannot be")
        demonstration = _demonstration(example, [lines[place] for place in places], given.signature)
        if isinstance(demonstration, Refusal):
            return demonstration
        if key_of(demonstration) in known:
            return Refusal(f"the example in line {example.first_line} is a demonstration already")
        known.add(key_of(demonstration))
        taken.update(places)
        made.append(demonstration)
    return [line for place, line in enumerate(lines) if place not in taken], made


def _demonstration(example: WorkedExample, lines: Sequence[str], signature: Any) -> Demonstration | Refusal:
    where = f"the example in line {example.first_line}"
    fields = {**example.inputs, **example.outputs}
    wanted = {name for name in signature.fields if name != _OPTIONAL or name in fields}
    if set(fields) != wanted or not set(example.inputs) <= set(signature.input_fields):
        wrong = sorted(set(fields) ^ wanted) or sorted(example.inputs)
        return Refusal(f"{where} does not have the signature's fields: {wrong[0]!r:.40}")
    text = _spaced("\n".join(lines))
    for name, value in fields.items():
        if not all(leaf.strip() and _spaced(leaf) in text for leaf in _leaves(value)):
            return Refusal(f"{where} does not say what was taken for its field {name!r}")
        if not _fits(value, signature.fields[name].annotation):
            return Refusal(f"the value of {name!r} in {where} does not have the field's type")
    said = {word.casefold() for leaf in _leaves(fields) for word in _WORD.findall(leaf)}
    said |= {word.casefold() for name in fields for word in _WORD.findall(name)} | _FILLING
    left = [word for word in _WORD.findall(text) if word.casefold() not in said and not word.isdigit()]
    if len(left) > _LEFT_OVER:
        return Refusal(f"the lines of {where} say more than the example: {' '.join(left[:8])!r}")
    shown = signature if _OPTIONAL in fields or _OPTIONAL not in signature.fields else signature.delete(_OPTIONAL)
    try:
        made = demonstration_of(PredictorRun("", fields, fields, 0.0), shown)
    except NotJSON as error:
        return Refusal(f"{where} cannot be a demonstration: {error}")
    return Demonstration(made.inputs, made.outputs)


def _fits(value: Any, annotation: Any) -> bool:
    try:
        pydantic.TypeAdapter(annotation).validate_python(value)
    except pydantic.ValidationError:
        return False
    except pydantic.PydanticUserError:
        # A type that pydantic cannot check: then the program's own use of it must show.
        return True
    return True


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
        return
    yield value if isinstance(value, str) else str(value)


def _spaced(text: str) -> str:
    return " ".join(text.split())
