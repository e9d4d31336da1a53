"""Judging one edit by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from combee_dspy.guards._copies import CopyIndex
from combee_dspy.guards._guards import Guards, text_tokens
from combee_dspy.guards._text import BULLET, bullets, own_description, placeholders, read_section, write_section
from combee_dspy.records import Demonstration, Edit, Refusal

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class GuardInput:
    """What an edit of one component is judged by: the parent's texts, and the seed's.

    Where the seed's instruction is not known (``None``), the parent's counts instead; without a
    ``dspy.Signature``, what needs it is skipped.
    """

    component: str
    instruction: str
    field_descriptions: Mapping[str, str] = field(default_factory=dict)
    demonstrations: tuple[Demonstration, ...] = ()
    seed_instruction: str | None = None
    seed_field_descriptions: Mapping[str, str] = field(default_factory=dict)
    signature: Any = None

    @property
    def own_texts(self) -> tuple[str, ...]:
        """The seed's texts: nothing that they say is a copy."""
        return tuple(text for text in (self.seed_instruction, *self.seed_field_descriptions.values()) if text)


def check(edit: Edit, guards: Guards, given: GuardInput, copies: CopyIndex | None = None) -> Refusal | None:
    """Return why an edit may not become a child, or ``None``. Pure.

    Judged in this order, the first reason counts: that anything changes, the
    signature, placeholders, protected rules, the token budget, copied text.
    Demonstrations are examples, so only the signature binds them.

    Args:
        edit: What an operator returned, less the lines that :func:`without_copies` takes out.
        guards: The user's guards.
        given: What it is judged by.
        copies: The training examples' runs of words; without, copies are not looked for.
    """
    fault = _unchanged(edit, given) or _broken_signature(edit, given)
    if fault:
        return Refusal(fault)
    for what, new, parent, seed in _texts(edit, given):
        lost = [name for name in placeholders(seed) if name not in new]
        if lost:
            return Refusal(f"the {what} loses the placeholder {lost[0]}")
        for rule in guards.rules_in(given.component, parent, seed):
            if rule not in new:
                return Refusal(f"the {what} loses the protected rule {_short(rule)!r}")
    fault = _over_budget(edit, guards, given) or (_copied(edit, given, copies) if copies is not None else "")
    return Refusal(fault) if fault else None


def without_copies(edit: Edit, given: GuardInput, copies: CopyIndex) -> tuple[Edit, tuple[str, ...]]:
    """Return an edit without the lessons that copy a training example, and those lessons.

    A lesson is one bullet, of the instruction's section or at the end of a
    field's description. Those that the parent has stay. Text that is no list is
    left as it is: a copy in there is a reason for :func:`check` to refuse the edit.
    """
    dropped: list[str] = []

    def allowed(lessons: list[str], known: list[str]) -> list[str]:
        kept = [one for one in lessons if one in known or not copies.copied(one, given.own_texts)]
        dropped.extend(one for one in lessons if one not in kept)
        return kept

    instruction, descriptions = edit.instruction, edit.field_descriptions
    if instruction is not None:
        own, lessons = read_section(instruction)
        kept = allowed(lessons, read_section(given.instruction)[1])
        instruction = instruction if len(kept) == len(lessons) else write_section(own, kept)
    if descriptions is not None:
        descriptions = {
            name: _with_bullets(text, allowed(bullets(text), bullets(given.field_descriptions.get(name, ""))))
            for name, text in descriptions.items()
        }
    return replace(edit, instruction=instruction, field_descriptions=descriptions), tuple(dropped)


def _with_bullets(description: str, kept: list[str]) -> str:
    lines = description.split("\n")
    count = len(bullets(description))
    return "\n".join([*lines[: len(lines) - count], *(BULLET + lesson for lesson in kept)])


def _unchanged(edit: Edit, given: GuardInput) -> str:
    if edit.instruction is not None and not edit.instruction.strip():
        return "the new instruction is empty"
    described = {name: own_description(name, text) for name, text in given.field_descriptions.items()}
    same = (
        edit.instruction in (None, given.instruction)
        and edit.demonstrations in (None, given.demonstrations)
        and {**described, **(edit.field_descriptions or {})} == described
    )
    return "the edit changes nothing" if same else ""


def _texts(edit: Edit, given: GuardInput) -> Iterator[tuple[str, str, str, str]]:
    """Yield each text that an edit changes: its name, and how it reads now, in the parent and in the seed."""
    if edit.instruction is not None:
        seed = given.instruction if given.seed_instruction is None else given.seed_instruction
        yield "instruction", edit.instruction, given.instruction, seed
    # A field that the edit leaves out is left as it is: an edit cannot take a description away by silence.
    for name, new in (edit.field_descriptions or {}).items():
        parent = own_description(name, given.field_descriptions.get(name, ""))
        seed = own_description(name, given.seed_field_descriptions.get(name, parent))
        yield f"description of {name!r}", own_description(name, new), parent, seed


def _broken_signature(edit: Edit, given: GuardInput) -> str:
    if given.signature is None:
        return ""
    broken = "the edit breaks the signature: "
    inputs, outputs = given.signature.input_fields, given.signature.output_fields
    for name in edit.field_descriptions or {}:
        if name not in inputs and name not in outputs:
            return f"{broken}it describes {name!r}, which is no field"
    for demonstration in edit.demonstrations or ():
        for part, names, what in ((demonstration.inputs, inputs, "input"), (demonstration.outputs, outputs, "output")):
            unknown = [name for name in part if name not in names]
            if unknown:
                return f"{broken}a demonstration shows {unknown[0]!r}, which is no {what} field"
            # DSPy shows a demonstration that lacks fields, but drops one without any input or any output.
            if names and not part:
                return f"{broken}a demonstration has no {what} field"
    return ""


def _over_budget(edit: Edit, guards: Guards, given: GuardInput) -> str:
    if guards.max_tokens is None or (edit.instruction is None and edit.field_descriptions is None):
        return ""
    instruction = given.instruction if edit.instruction is None else edit.instruction
    tokens = text_tokens(instruction, {**given.field_descriptions, **(edit.field_descriptions or {})})
    if tokens <= guards.max_tokens:
        return ""
    return f"the text of {given.component} takes {tokens:,} tokens of {guards.max_tokens:,}"


def _copied(edit: Edit, given: GuardInput, copies: CopyIndex) -> str:
    for what, new, _, _ in _texts(edit, given):
        if found := copies.copied(new, given.own_texts):
            return f"the {what} copies {len(found.split())} words from a training example: {_short(found)!r}"
    return ""


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
