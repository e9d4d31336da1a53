"""The user's guards: notes about them for a proposer, and the check of one edit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards._copies import CopyIndex
from combee_dspy.records import Demonstration, Edit, Refusal
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import parameters

if TYPE_CHECKING:
    import dspy

_PLACEHOLDER = re.compile(r"\{[^\W\d]\w*\}|</?[^\W\d][\w.-]*\s*/?>")
_MOST_QUOTED = 120


def placeholders(text: str) -> tuple[str, ...]:
    """Return the placeholders of a text: ``{identifier}``, ``<tag>`` and ``</tag>``, each once.

    A program may fill them in or parse them, so an edit must not lose one that the seed's text has.
    Those that only learned text has do not count.
    """
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(text)))


@parameters
class Guards:
    """What no edit may break.

    Example:
        >>> from combee_dspy.guards import GuardInput, Guards, check
        >>> from combee_dspy.records import Edit
        >>> target = GuardInput("answer", "Answer. Never guess.")
        >>> check(Edit(instruction="Answer."), Guards(keep=("Never guess.",)), target).reason
        "the instruction loses the protected rule 'Never guess.'"

    Attributes:
        max_tokens: Estimated tokens that a component's instruction and field descriptions may take
            together, the seed's own text included; ``None`` for no budget.
        keep: Protected rules. Each stays verbatim in every text whose seed, or whose parent, has
            it. A mapping from component to rules binds each to one component.
        max_copied_words: The longest run of words that an instruction or a field description may
            share with a training example; a longer one is a copy. 12 makes a run of 13 words a
            copy, the length by which GPT-3's authors told test examples seen in training from
            chance (arXiv 2005.14165, appendix C). ``None`` allows copies.
        removed: Lessons that no text serves, in these words or in others that a comparison unites
            with them: what you read in a report and do not want back. Lines of the student's own
            section of lessons may be among them; where no new text is better, the student comes
            back as it was. Refused beside what writes texts outside the book.
    """

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    keep: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    max_copied_words: Annotated[int, Field(ge=1)] | None = 12
    removed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, texts in (("keep", self._all_rules), ("removed", self.removed)):
            if not all(text.strip() for text in texts):
                problem, remedy = "holds an empty text", "Every text contains it: leave it out."
                raise ArgumentValueError(f"Guards.{name}", texts, problem, remedy)

    @property
    def _all_rules(self) -> tuple[str, ...]:
        if isinstance(self.keep, dict):
            return tuple(rule for rules in self.keep.values() for rule in rules)
        return self.keep

    def rules(self, component: str) -> tuple[str, ...]:
        """Return the rules that may apply to a component, each once."""
        rules = self.keep.get(component, ()) if isinstance(self.keep, dict) else self.keep
        return tuple(dict.fromkeys(rules))

    def rules_in(self, component: str, *texts: str) -> tuple[str, ...]:
        """Return a component's rules that one of the texts has."""
        return tuple(rule for rule in self.rules(component) if any(rule in text for text in texts))


def _text_tokens(instruction: str, descriptions: Mapping[str, str]) -> int:
    """Return the estimated tokens that count against a component's budget."""
    return estimate_tokens(instruction) + sum(map(estimate_tokens, descriptions.values()))


def check_program(
    guards: Guards,
    instructions: Mapping[str, str],
    descriptions: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Check guards against a program's texts by component, before anything is spent.

    Raises:
        ArgumentValueError: A protected rule is in none of the program's texts, or not in the
            component that it names; or a component's own text already passes the budget.
    """
    described = descriptions or {}
    texts = {name: [text, *described.get(name, {}).values()] for name, text in instructions.items()}
    everywhere = [text for own in texts.values() for text in own]
    bound = [(rule, "any text of the program", everywhere) for rule in guards.keep]
    if isinstance(guards.keep, dict):
        bound = [
            (rule, f"the text of {name!r}", texts.get(name, []))
            for name, rules in guards.keep.items()
            for rule in rules
        ]
    for rule, where, own in bound:
        if not any(rule in text for text in own):
            problem = f"is a rule that is not in {where}"
            remedy = f"Write it into the text word for word. Components: {', '.join(texts)}."
            raise ArgumentValueError("Guards.keep", rule, problem, remedy)
    for component, text in instructions.items():
        tokens = _text_tokens(text, described.get(component, {}))
        if guards.max_tokens is not None and tokens > guards.max_tokens:
            problem = f"is less than the {tokens:,} estimated tokens that {component!r} starts with"
            remedy = "Raise it, or shorten the program."
            raise ArgumentValueError("Guards.max_tokens", guards.max_tokens, problem, remedy)


def guard_notes(
    guards: Guards,
    component: str,
    text: str,
    descriptions: Mapping[str, str] | None = None,
    seed: str | None = None,
) -> str:
    """Return what a proposer must know of the guards; empty where nothing binds it.

    ``text`` and ``descriptions`` are the current ones, which share the budget. ``seed`` is the
    seed's instruction, whose placeholders must stay; the current one where it is not known.
    """
    notes: list[str] = []
    if (most := guards.max_tokens) is not None:
        now = _text_tokens(text, descriptions or {})
        words = max(1, most * 3 // 4)
        notes.append(
            f"- The whole text may take at most {most:,} tokens (about {words:,} words); it takes"
            f" {now:,} now. A longer text is thrown away."
        )
    if rules := guards.rules_in(component, text, seed or ""):
        notes.append("- These rules stay in the text word for word:")
        notes.extend(f"  {rule}" for rule in rules)
    if names := placeholders(text if seed is None else seed):
        listed = " ".join(names)
        notes.append(f"- These placeholders stay in the text exactly as they are: {listed}")
    if (run := guards.max_copied_words) is not None:
        notes.append(f"- No more than {run} words in a row may be copied from an example.")
    return "\n".join(notes)


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
    signature: type[dspy.Signature] | None = None

    @property
    def own_texts(self) -> tuple[str, ...]:
        """The seed's texts: nothing that they say is a copy."""
        return tuple(
            text for text in (self.seed_instruction, *self.seed_field_descriptions.values()) if text
        )


def check(
    edit: Edit, guards: Guards, target: GuardInput, copies: CopyIndex | None = None
) -> Refusal | None:
    """Return why an edit may not become a child, or ``None``. Pure.

    Judged in this order, the first reason counts: that anything changes, the signature,
    placeholders, protected rules, the token budget, copied text. Demonstrations are examples, so
    only the signature binds them. Lessons that copy an example can be taken out before
    (:meth:`CopyIndex.cut`); without ``copies`` none are looked for.
    """
    return next((Refusal(fault) for fault in _faults(edit, guards, target, copies)), None)


def _faults(
    edit: Edit, guards: Guards, target: GuardInput, copies: CopyIndex | None
) -> Iterator[str]:
    yield from _no_change(edit, target)
    if target.signature is not None:
        yield from _broken_signature(edit, target.signature)
    texts = list(_texts(edit, target))
    for text in texts:
        yield from _losses(*text, guards, target.component)
    if guards.max_tokens is not None and texts:
        instruction = target.instruction if edit.instruction is None else edit.instruction
        descriptions = {**target.field_descriptions, **(edit.field_descriptions or {})}
        tokens = _text_tokens(instruction, descriptions)
        if tokens > guards.max_tokens:
            yield f"the text of {target.component} takes {tokens:,} tokens of {guards.max_tokens:,}"
    for what, new, _, _ in texts:
        if copies is not None and (copy := copies.copied(new, target.own_texts)):
            words = len(copy.split())
            yield f"the {what} copies {words} words from a training example: {_short(copy)!r}"


def _losses(
    what: str, new: str, parent: str, seed: str, guards: Guards, component: str
) -> Iterator[str]:
    for name in placeholders(seed):
        if name not in new:
            yield f"the {what} loses the placeholder {name}"
    for rule in guards.rules_in(component, parent, seed):
        if rule not in new:
            yield f"the {what} loses the protected rule {_short(rule)!r}"


def _no_change(edit: Edit, target: GuardInput) -> Iterator[str]:
    if edit.instruction is not None and not edit.instruction.strip():
        yield "the new instruction is empty"
    before = dict(target.field_descriptions)
    if (
        edit.instruction in (None, target.instruction)
        and edit.demonstrations in (None, target.demonstrations)
        and {**before, **(edit.field_descriptions or {})} == before
    ):
        yield "the edit changes nothing"


def _broken_signature(edit: Edit, signature: type[dspy.Signature]) -> Iterator[str]:
    broken = "the edit breaks the signature:"
    for name in edit.field_descriptions or {}:
        if name not in signature.fields:
            yield f"{broken} it describes {name!r}, which is no field"
    for demonstration in edit.demonstrations or ():
        for values, fields, kind in (
            (demonstration.inputs, signature.input_fields, "input"),
            (demonstration.outputs, signature.output_fields, "output"),
        ):
            for name in values:
                if name not in fields:
                    yield f"{broken} a demonstration shows {name!r}, which is no {kind} field"
            # DSPy shows a demonstration that lacks fields, but drops one without any input or any
            # output.
            if fields and not values:
                yield f"{broken} a demonstration has no {kind} field"


def _texts(edit: Edit, target: GuardInput) -> Iterator[tuple[str, str, str, str]]:
    """Yield each text that an edit changes: name, new text, the parent's and the seed's."""
    if edit.instruction is not None:
        seed = target.instruction if target.seed_instruction is None else target.seed_instruction
        yield "instruction", edit.instruction, target.instruction, seed
    # A field that the edit leaves out is left as it is: an edit cannot take a description away by
    # silence.
    for name, new in (edit.field_descriptions or {}).items():
        parent = target.field_descriptions.get(name, "")
        seed = target.seed_field_descriptions.get(name, parent)
        yield f"description of {name!r}", new, parent, seed


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_QUOTED else line[:_MOST_QUOTED] + "…"
