"""Judging one edit by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.guards._copies import CopyIndex
from combee_dspy.guards._guards import Guards, text_tokens
from combee_dspy.guards._placeholders import own_description, placeholders
from combee_dspy.records import Edit, Refusal

__all__ = ["GuardInput", "check", "check_form"]

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class GuardInput:
    """One edit of one component, and what it is judged by.

    Attributes:
        component: The component's name.
        parent: The parent's instruction.
        edit: What an operator returned.
        seed: The seed's instruction; ``None`` where it is not known, and the parent's counts instead.
        parent_fields: The parent's field descriptions.
        seed_fields: The seed's; empty where they are not known.
        signature: The predictor's ``dspy.Signature``; ``None`` skips what needs it.
    """

    component: str
    parent: str
    edit: Edit
    seed: str | None = None
    parent_fields: Mapping[str, str] = field(default_factory=dict)
    seed_fields: Mapping[str, str] = field(default_factory=dict)
    signature: Any = None


@dataclass(frozen=True, slots=True)
class _Text:
    """One text that an edit changes."""

    what: str
    new: str
    parent: str
    seed: str


def check(guards: Guards, given: GuardInput, copies: CopyIndex | None = None) -> Refusal | None:
    """Return why an edit may not become a child, or ``None``. Never changes the edit.

    Judged in this order, the first reason counts: the signature, placeholders,
    protected rules, the token budget, copied text. Demonstrations are examples, so
    only the signature binds them; :func:`~combee_dspy.guards.copied_in_demonstrations`
    counts what they show.

    Args:
        guards: The user's guards.
        given: The edit and what it is judged by.
        copies: The training examples' runs of words; without, copies are not looked for.
    """
    refused = check_form(guards, given)
    if refused is not None or copies is None or guards.max_copied_words is None:
        return refused
    own = [text for text in (given.seed, *given.seed_fields.values()) if text]
    for text in _texts(given):
        found = copies.copied(text.new, own)
        if found:
            problem = f"the {text.what} copies {len(found.split())} words from a training example"
            return Refusal(f"{problem}: {_short(found)!r}")
    return None


def check_form(guards: Guards, given: GuardInput) -> Refusal | None:
    """Return why an edit's form may not stand, or ``None``: all of :func:`check` but copied text."""
    if given.edit == Edit():
        return Refusal("the edit changes nothing")
    if given.edit.instruction is not None and not given.edit.instruction.strip():
        return Refusal("the new instruction is empty")
    broken = _broken_signature(given)
    if broken:
        return Refusal(f"the edit breaks the signature: {broken}")
    for text in _texts(given):
        lost = [name for name in placeholders(text.seed) if name not in text.new]
        if lost:
            return Refusal(f"the {text.what} loses the placeholder {lost[0]}")
        for rule in guards.rules_in(given.component, text.parent, text.seed):
            if rule not in text.new:
                return Refusal(f"the {text.what} loses the protected rule {_short(rule)!r}")
    return _over_budget(guards, given)


def _texts(given: GuardInput) -> Iterator[_Text]:
    edit = given.edit
    if edit.instruction is not None:
        yield _Text("instruction", edit.instruction, given.parent, given.parent if given.seed is None else given.seed)
    if edit.field_descriptions is None:
        return
    # A field that the edit leaves out is left as it is: an edit cannot take a description away by silence.
    for name, new in edit.field_descriptions.items():
        parent = own_description(name, given.parent_fields.get(name, ""))
        seed = own_description(name, given.seed_fields.get(name, parent))
        yield _Text(f"description of {name!r}", own_description(name, new), parent, seed)


def _broken_signature(given: GuardInput) -> str:
    if given.signature is None:
        return ""
    inputs, outputs = given.signature.input_fields, given.signature.output_fields
    for name in given.edit.field_descriptions or {}:
        if name not in inputs and name not in outputs:
            return f"it describes {name!r}, which is no field"
    for demonstration in given.edit.demonstrations or ():
        for part, names, what in ((demonstration.inputs, inputs, "input"), (demonstration.outputs, outputs, "output")):
            unknown = [name for name in part if name not in names]
            if unknown:
                return f"a demonstration shows {unknown[0]!r}, which is no {what} field"
            # DSPy shows a demonstration that lacks fields, but drops one without any input or any output.
            if names and not part:
                return f"a demonstration has no {what} field"
    return ""


def _over_budget(guards: Guards, given: GuardInput) -> Refusal | None:
    edit, most = given.edit, guards.max_tokens
    if most is None or (edit.instruction is None and edit.field_descriptions is None):
        return None
    instruction = given.parent if edit.instruction is None else edit.instruction
    tokens = text_tokens(instruction, {**given.parent_fields, **(edit.field_descriptions or {})})
    if tokens <= most:
        return None
    return Refusal(f"the text of {given.component} takes {tokens:,} tokens of {most:,}")


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
