"""The operator contract, and how operators ask for an edit and check it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import dspy
from pydantic import TypeAdapter, ValidationError

from combee_dspy.guards import CopyIndex, GuardInput, Guards, check, placeholders
from combee_dspy.lessons import Book, Taught, read_section, write_section
from combee_dspy.records import Demonstration, Edit, FailedCall, Lessons, PredictorRun, Refusal
from combee_dspy.strategies import Strategy, StrategyContext


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """What an operator works on: one component of one parent, as the parent has it.

    Attributes:
        signature: The predictor's ``dspy.Signature`` class; ``None`` where the host knows texts
            alone, and then no operator is asked that edits more.
        lessons: What the aggregator returned, and behind it lessons of other candidates that the
            parent lacks; empty where the operator needs none.
        runs: The predictor's part of every rollout of the minibatch, in minibatch order.
        field_descriptions: The parent's description of every field by name, ``""`` where there is
            none; empty where the signature's own are the parent's.
        guards: What the edit must not break. Whoever asks checks it again, copied text included.
        seed_instruction: The program's first instruction, whose placeholders must stay; ``None``
            where not known.
        seed_field_descriptions: The program's first field descriptions; empty where they are not
            known.
        book: What was learned about the component so far, these lessons included, without what a
            candidate of a front gets no share in; ``None`` where the host keeps no book.
    """

    instruction: str
    demonstrations: tuple[Demonstration, ...]
    signature: Any
    lessons: Lessons
    runs: tuple[PredictorRun, ...] = ()
    perfect_score: float = 1.0
    field_descriptions: Mapping[str, str] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    seed_instruction: str | None = None
    seed_field_descriptions: Mapping[str, str] = field(default_factory=dict)
    book: Book | None = None


class Operator(Strategy):
    """Applies what was learned as one edit of one component.

    Attributes:
        needs_lessons: Whether an aggregator must run first. Where no operator of an update needs
            lessons, the scan is skipped and costs nothing.
        edits_demonstrations: Whether its edits may change demonstrations, which makes them a part
            of every candidate.
        edits_fields: Whether its edits may change field descriptions, likewise.
        near_parent: Whether its edits say what the parent says, in other words or in another order.
            Such a child is not compared with its own parent, and order counts as a difference.
        joins_lessons: Whether one call of its own reads all lessons together, so that the last
            merge of a scan can be left to it.
        serves_book: Whether its edit is the text of before with what the book of lessons serves.
            Beside any other operator candidates are compared (``Search(keep="pareto")``), unless
            the user chose.
    """

    kind: ClassVar[str] = "operator"
    needs_lessons: ClassVar[bool] = True
    edits_demonstrations: ClassVar[bool] = False
    edits_fields: ClassVar[bool] = False
    near_parent: ClassVar[bool] = False
    joins_lessons: ClassVar[bool] = False
    serves_book: ClassVar[bool] = False

    @abstractmethod
    async def apply(self, material: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the edit, or why there is none."""

    def fits(self, new: str, old: str) -> bool:
        """Return whether an instruction may take another's place by the operator's own budget.

        Asked where tests of lessons change a text that operators wrote; yes by default. Pure.
        """
        return True


async def ask(
    context: StrategyContext,
    signature: type[dspy.Signature],
    inputs: Mapping[str, object],
    *place: str | int,
) -> Any | Refusal:
    """Return the value of the answer's output field, or why there is none.

    The context's notes, where it has any, are one more input field, ``constraints``.
    """
    fields = dict(inputs)
    if context.notes:
        signature, fields["constraints"] = _constrained(signature), context.notes
    answer = await context.ask(signature, fields, *place, role="proposer")
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
    fields: dict[str, Any] = {
        name: (field.annotation, field) for name, field in signature.fields.items()
    }
    fields["constraints"] = (str, constraints)
    return dspy.make_signature(fields, signature.instructions, signature.__name__)


def lessons_at_hand(material: OperatorInput) -> list[Taught]:
    """Return what the aggregator taught, as a host without a book would add it."""
    return [
        Taught(" ".join(lesson.text.split()), tuple(map(str, lesson.sources)))
        for lesson in material.lessons.lessons
        if lesson.text.strip()
    ]


def numbered(lines: Sequence[str]) -> list[str]:
    """Return lines with numbers from 1, as a prompt shows them."""
    return [f"{number}. {line}" for number, line in enumerate(lines, start=1)]


def field_descriptions(signature: type[dspy.Signature]) -> dict[str, str]:
    """Return the description of every field of a signature, inputs first; may be empty."""
    return {
        name: own_description(name, str((field.json_schema_extra or {}).get("desc") or ""))
        for name, field in signature.fields.items()
    }


def own_description(name: str, text: str) -> str:
    """Return a field's description without DSPy's stand-in ``${name}``, which no LM is shown."""
    return "" if text == f"${{{name}}}" else text


def describe_parent(material: OperatorInput) -> dict[str, str]:
    """Return the parent's field descriptions: its own, or its signature's where it has none."""
    own = {name: own_description(name, text) for name, text in material.field_descriptions.items()}
    # A host other than Combee may know texts alone.
    return own if material.signature is None else {**field_descriptions(material.signature), **own}


def guard_input(material: OperatorInput, component: str) -> GuardInput:
    """Return what the guards judge an edit of this component by."""
    return GuardInput(
        component=component,
        instruction=material.instruction,
        field_descriptions=describe_parent(material),
        demonstrations=material.demonstrations,
        seed_instruction=_required_text(material),
        seed_field_descriptions=material.seed_field_descriptions,
        signature=material.signature,
    )


def check_edit(edit: Edit, material: OperatorInput, context: StrategyContext) -> Edit | Refusal:
    """Return an edit that changes something and breaks nothing, or why it is none."""
    return check(edit, material.guards, guard_input(material, context.component)) or edit


def without_copies(
    edit: Edit, material: GuardInput, copies: CopyIndex
) -> tuple[Edit, tuple[str, ...]]:
    """Return an edit without what its texts copy from training examples, and the lines that did.

    What the seed's texts say is no copy. Demonstrations are examples, and stay.
    """
    refused: list[str] = []

    def cut(text: str) -> str:
        left, lines = copies.cut(text, material.own_texts)
        refused.extend(lines)
        return left

    instruction, descriptions = edit.instruction, edit.field_descriptions
    if instruction is not None:
        own, lessons = read_section(instruction)
        left, lines = copies.cut_lines(lessons, material.own_texts)
        own = cut(own)
        refused.extend(lines)
        instruction = write_section(own, list(filter(None, left))) if refused else instruction
    if descriptions is not None:
        descriptions = {name: cut(text) for name, text in descriptions.items()}
    return replace(edit, instruction=instruction, field_descriptions=descriptions), tuple(refused)


def is_protected(line: str, material: OperatorInput, context: StrategyContext) -> bool:
    """Whether a line carries a protected rule, a part of one, or a placeholder that must stay."""
    rules = material.guards.rules(context.component)
    text = line.strip()
    if any(
        rule in line or (text and text in rule and rule in material.instruction) for rule in rules
    ):
        return True
    return any(name in line for name in placeholders(_required_text(material)))


def _required_text(material: OperatorInput) -> str:
    """Return the text whose placeholders must stay: the seed's, else the parent's own."""
    return (
        read_section(material.instruction)[0]
        if material.seed_instruction is None
        else material.seed_instruction
    )
