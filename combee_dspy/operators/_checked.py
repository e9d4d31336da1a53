"""The last step of every operator: an edit that breaks something is refused, never mended."""

from __future__ import annotations

from combee_dspy.guards import GuardInput, check, own_description, placeholders, read_section
from combee_dspy.operators._base import OperatorInput
from combee_dspy.operators._components import field_descriptions
from combee_dspy.records import Edit, Refusal
from combee_dspy.strategies import StrategyContext

__all__ = ["checked", "described", "guard_input", "is_protected"]


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
