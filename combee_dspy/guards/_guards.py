"""The user's guards: what a proposer is told of them, and judging one edit by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards._copies import CopyIndex
from combee_dspy.records import Demonstration, Edit, Refusal
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import parameters

_PLACEHOLDER = re.compile(r"\{[^\W\d]\w*\}|</?[^\W\d][\w.-]*\s*/?>")
_MOST_QUOTED = 120


def placeholders(text: str) -> tuple[str, ...]:
    """Return the placeholders of a text: ``{identifier}``, ``<tag>`` and ``</tag>``, each once.

    A program may fill them in or parse them, so an edit must not lose one that the seed's text has.
    Those that only learned text has are nobody's contract.
    """
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(text)))


def own_description(name: str, text: str) -> str:
    """Return a field's description without DSPy's stand-in ``${name}``, which no LM is shown."""
    return "" if text == f"${{{name}}}" else text


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
            it. A mapping from component to rules says where each belongs.
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
        rules = (
            [rule for rules in self.keep.values() for rule in rules]
            if isinstance(self.keep, dict)
            else self.keep
        )
        if not all(rule.strip() for rule in rules):
            raise ArgumentValueError(
                "Guards.keep", self.keep, "holds an empty rule", "Every text contains it."
            )

        if not all(text.strip() for text in self.removed):
            raise ArgumentValueError(
                "Guards.removed", self.removed, "holds an empty lesson", "Give the lesson's text."
            )

    def rules(self, component: str) -> tuple[str, ...]:
        """Return the rules that may apply to a component, each once."""
        rules = self.keep.get(component, ()) if isinstance(self.keep, dict) else self.keep
        return tuple(dict.fromkeys(rules))

    def rules_in(self, component: str, *texts: str) -> tuple[str, ...]:
        """Return a component's rules that one of the texts has."""
        return tuple(rule for rule in self.rules(component) if any(rule in text for text in texts))


def _text_tokens(instruction: str, descriptions: Mapping[str, str]) -> int:
    """Return the estimated tokens that count against a component's budget."""
    return estimate_tokens(instruction) + sum(
        estimate_tokens(own_description(*item)) for item in descriptions.items()
    )


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
    sought = [
        (
            guards.keep,
            "any text of the program",
            [text for texts_there in texts.values() for text in texts_there],
        )
    ]
    if isinstance(guards.keep, dict):
        unknown = [name for name in guards.keep if name not in texts]
        if unknown:
            remedy = f"Components: {', '.join(texts) or 'none'}."
            raise ArgumentValueError(
                "Guards.keep", unknown[0], "names no component of the program", remedy
            )
        sought = [
            (rules, f"the text of {name!r}", texts[name]) for name, rules in guards.keep.items()
        ]
    for rules, where, texts_there in sought:
        for rule in rules:
            if not any(rule in text for text in texts_there):
                remedy = (
                    "Write it into the program's instruction word for word, or leave it out of"
                    " keep."
                )
                raise ArgumentValueError(
                    "Guards.keep", rule, f"is a rule that is not in {where}", remedy
                )
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
    notes = []
    if guards.max_tokens is not None:
        now = _text_tokens(text, descriptions or {})
        notes.append(
            f"- The whole text may take at most {guards.max_tokens:,} tokens (about"
            f" {max(1, guards.max_tokens * 3 // 4):,} words); it takes {now:,} now. A longer text"
            " is thrown away."
        )
    rules = guards.rules_in(component, text, *([seed] if seed else ()))
    if rules:
        notes.append("- These rules stay in the text word for word:")
        notes.extend(f"  {rule}" for rule in rules)
    names = placeholders(text if seed is None else seed)
    if names:
        notes.append(
            f"- These placeholders stay in the text exactly as they are: {' '.join(names)}"
        )
    if guards.max_copied_words is not None:
        notes.append(
            f"- No more than {guards.max_copied_words} words in a row may be copied from an"
            " example."
        )
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
    signature: Any = None

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
    yield from _broken_signature(edit, target)
    texts = list(_texts(edit, target))
    for what, new, parent, seed in texts:
        for name in placeholders(seed):
            if name not in new:
                yield f"the {what} loses the placeholder {name}"
        for rule in guards.rules_in(target.component, parent, seed):
            if rule not in new:
                yield f"the {what} loses the protected rule {_short(rule)!r}"
    if guards.max_tokens is not None and texts:
        instruction = target.instruction if edit.instruction is None else edit.instruction
        tokens = _text_tokens(
            instruction, {**target.field_descriptions, **(edit.field_descriptions or {})}
        )
        if tokens > guards.max_tokens:
            yield f"the text of {target.component} takes {tokens:,} tokens of {guards.max_tokens:,}"
    for what, new, _, _ in texts:
        if copies is not None and (copy := copies.copied(new, target.own_texts)):
            yield (
                f"the {what} copies {len(copy.split())} words from a training example:"
                f" {_short(copy)!r}"
            )


def _no_change(edit: Edit, target: GuardInput) -> Iterator[str]:
    if edit.instruction is not None and not edit.instruction.strip():
        yield "the new instruction is empty"
    described = {
        name: own_description(name, text) for name, text in target.field_descriptions.items()
    }
    if (
        edit.instruction in (None, target.instruction)
        and edit.demonstrations in (None, target.demonstrations)
        and {**described, **(edit.field_descriptions or {})} == described
    ):
        yield "the edit changes nothing"


def _broken_signature(edit: Edit, target: GuardInput) -> Iterator[str]:
    if target.signature is None:
        return
    broken = "the edit breaks the signature: "
    inputs, outputs = target.signature.input_fields, target.signature.output_fields
    for name in edit.field_descriptions or {}:
        if name not in inputs and name not in outputs:
            yield f"{broken}it describes {name!r}, which is no field"
    for demonstration in edit.demonstrations or ():
        for part, names, what in (
            (demonstration.inputs, inputs, "input"),
            (demonstration.outputs, outputs, "output"),
        ):
            yield from (
                f"{broken}a demonstration shows {name!r}, which is no {what} field"
                for name in part
                if name not in names
            )
            # DSPy shows a demonstration that lacks fields, but drops one without any input or any
            # output.
            if names and not part:
                yield f"{broken}a demonstration has no {what} field"


def _texts(edit: Edit, target: GuardInput) -> Iterator[tuple[str, str, str, str]]:
    """Yield each text that an edit changes: name, new text, the parent's and the seed's."""
    if edit.instruction is not None:
        seed = target.instruction if target.seed_instruction is None else target.seed_instruction
        yield "instruction", edit.instruction, target.instruction, seed
    # A field that the edit leaves out is left as it is: an edit cannot take a description away by
    # silence.
    for name, new in (edit.field_descriptions or {}).items():
        parent = own_description(name, target.field_descriptions.get(name, ""))
        seed = own_description(name, target.seed_field_descriptions.get(name, parent))
        yield f"description of {name!r}", own_description(name, new), parent, seed


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_QUOTED else line[:_MOST_QUOTED] + "…"
