"""The last step of every operator: an edit that breaks something is refused, never mended."""

from __future__ import annotations

from combee_dspy.guards import GuardInput, check_form, own_description, placeholders
from combee_dspy.operators._base import OperatorInput
from combee_dspy.operators._fields import field_descriptions
from combee_dspy.operators._section import read_section
from combee_dspy.records import Edit, Refusal
from combee_dspy.strategies import StrategyContext

__all__ = ["checked", "described", "is_protected", "required_text"]


def described(given: OperatorInput) -> dict[str, str]:
    """Return the parent's field descriptions: its own, or its signature's where it has none."""
    own = {name: own_description(name, text) for name, text in given.field_descriptions.items()}
    # A host other than Combee may know texts alone.
    return {**(field_descriptions(given.signature) if given.signature is not None else {}), **own}


def required_text(given: OperatorInput) -> str:
    """Return the text whose placeholders must stay: the seed's, or the parent's without learned lessons."""
    return read_section(given.instruction)[0] if given.seed_instruction is None else given.seed_instruction


def is_protected(line: str, given: OperatorInput, context: StrategyContext) -> bool:
    """Whether a line carries a protected rule, a part of one, or a placeholder that must stay."""
    rules = given.guards.rules(context.component)
    text = line.strip()
    if any(rule in line or (text and text in rule and rule in given.instruction) for rule in rules):
        return True
    return any(name in line for name in placeholders(required_text(given)))


def checked(edit: Edit, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
    """Return an edit that changes something and breaks nothing, or why it is none."""
    if edit.instruction is not None and not edit.instruction.strip():
        return Refusal("the new instruction is empty")
    same = (
        edit.instruction in (None, given.instruction)
        and edit.demonstrations in (None, given.demonstrations)
        and edit.field_descriptions in (None, described(given))
    )
    if same:
        return Refusal("the instruction would not change")
    judged = GuardInput(
        component=context.component,
        parent=given.instruction,
        edit=edit,
        seed=required_text(given),
        parent_fields=described(given),
        signature=given.signature,
    )
    return check_form(given.guards, judged) or edit
