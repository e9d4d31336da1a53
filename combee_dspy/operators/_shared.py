"""What operators share: asking an LM for an edit, reading its hostile answer, and checking what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from pydantic import TypeAdapter, ValidationError

from combee_dspy.guards import GuardInput, check, own_description, placeholders, read_section
from combee_dspy.operators._base import OperatorInput
from combee_dspy.operators._components import field_descriptions
from combee_dspy.records import Edit, FailedCall, Refusal
from combee_dspy.strategies import StrategyContext


async def ask(
    context: StrategyContext, signature: type[dspy.Signature], inputs: Mapping[str, Any], place: str
) -> Any | Refusal:
    """Return the proposer's answer, the value of the signature's output field, or why there is none.

    The context's notes, where it has any, are one more input field, ``constraints``.
    """
    given = dict(inputs)
    if context.notes:
        signature, given["constraints"] = _constrained(signature), context.notes
    answer = await context.ask(signature, given, place, role="proposer")
    if isinstance(answer, FailedCall):
        return Refusal(f"the call failed: {answer.error}")
    ((name, field),) = signature.output_fields.items()
    try:
        # An answer out of a journal holds plain JSON where a live one may hold pydantic models.
        return TypeAdapter(field.annotation).validate_python(getattr(answer, name, None))
    except ValidationError as error:
        return Refusal(f"the answer's {name} cannot be read: {error.errors()[0]['msg']}")


def _constrained(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    """Return a signature with one more input, for what the context has to say."""
    constraints = dspy.InputField(desc="What the new text must respect, whatever else is asked.")
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in signature.fields.items()}
    fields["constraints"] = (str, constraints)
    return dspy.make_signature(fields, signature.instructions, signature.__name__)


def numbered(lines: Sequence[str]) -> list[str]:
    """Return lines with numbers from 1, as a prompt shows them."""
    return [f"{number}. {line}" for number, line in enumerate(lines, start=1)]


def described(given: OperatorInput) -> dict[str, str]:
    """Return the parent's field descriptions: its own, or its signature's where it has none."""
    own = {name: own_description(name, text) for name, text in given.field_descriptions.items()}
    # A host other than Combee may know texts alone.
    return {**(field_descriptions(given.signature) if given.signature is not None else {}), **own}


def guard_input(given: OperatorInput, component: str) -> GuardInput:
    """Return what the guards judge an edit of this component by."""
    return GuardInput(
        component=component,
        instruction=given.instruction,
        field_descriptions=described(given),
        demonstrations=given.demonstrations,
        seed_instruction=_required_text(given),
        seed_field_descriptions=given.seed_field_descriptions,
        signature=given.signature,
    )


def checked(edit: Edit, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
    """Return an edit that changes something and breaks nothing, or why it is none."""
    return check(edit, given.guards, guard_input(given, context.component)) or edit


def is_protected(line: str, given: OperatorInput, context: StrategyContext) -> bool:
    """Whether a line carries a protected rule, a part of one, or a placeholder that must stay."""
    rules = given.guards.rules(context.component)
    text = line.strip()
    if any(rule in line or (text and text in rule and rule in given.instruction) for rule in rules):
        return True
    return any(name in line for name in placeholders(_required_text(given)))


def _required_text(given: OperatorInput) -> str:
    """Return the text whose placeholders must stay: the seed's, or the parent's without learned lessons."""
    return read_section(given.instruction)[0] if given.seed_instruction is None else given.seed_instruction
