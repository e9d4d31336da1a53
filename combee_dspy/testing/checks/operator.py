"""Checks for operators: lessons and rollouts in, an edit out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Demonstration, Edit, Refusal
from combee_dspy.testing._kit import attempt, expect, expect_same_at_once
from combee_dspy.testing.doubles import ScriptedAsk, context, expect_calls_by_ask, operator_input

_LEARNED = (
    "Answer the question.\n\nLessons learned:\n- Carry the tens.\n- Write the answer in digits.\n-"
    " Check it."
)
_WITH_EXAMPLE = "Answer the question.\nQuestion: What is 2 plus 2?\nAnswer: 4"


def _cases() -> dict[str, OperatorInput]:
    return {
        "no lessons and no rollouts": operator_input(),
        "one lesson": operator_input(lessons=1),
        "one rollout": operator_input(runs=1),
        "lessons and rollouts": operator_input(lessons=5, runs=9),
        "demonstrations already there": operator_input(lessons=2, runs=9, demonstrations=4),
        "200 lessons and 200 rollouts": operator_input(lessons=200, runs=200),
        "an instruction with lessons": replace(
            operator_input(lessons=2, runs=9), instruction=_LEARNED
        ),
        "an instruction with an example": replace(
            operator_input(lessons=1, runs=3), instruction=_WITH_EXAMPLE
        ),
    }


def _apply(
    strategy: Operator, material: OperatorInput, case: str, ask: ScriptedAsk | None = None
) -> Any:
    mend = "return Refusal(reason) where there is nothing to do"
    return attempt(
        lambda: strategy.apply(material, context(ask)), f"`apply` returns, given {case}", mend
    )


def check_returns_an_edit_or_a_refusal(strategy: Operator) -> None:
    """Whatever there is to work on, and where every call fails or is answered with nothing."""
    for case, material in _cases().items():
        for ask in (ScriptedAsk(), ScriptedAsk(fail=lambda call: True), ScriptedAsk(empty=True)):
            result = _apply(strategy, material, case, ask)
            for holds, wanted, mend in _rules(strategy, result):
                expect(holds, wanted, f"given {case} it returned {result!r:.300}", mend)


def _rules(strategy: Operator, result: Any) -> Iterator[tuple[object, str, str]]:
    """Yield what must hold of a result, what is wanted, and how to mend it."""
    mend = (
        "Edit(instruction=…), Edit(demonstrations=(…)), Edit(field_descriptions={…}) or"
        " Refusal(reason)"
    )
    yield isinstance(result, (Edit, Refusal)), "an `Edit` or a `Refusal`", f"return {mend}"
    if isinstance(result, Refusal):
        yield _has_text(result.reason), "a refusal with a reason of one sentence", ""
        return
    yield result != Edit(), "an edit that changes something", "return Refusal(reason) instead"
    if result.instruction is not None:
        yield (
            _has_text(result.instruction),
            "an instruction with text",
            "leave `instruction` out, or refuse",
        )
    if result.demonstrations is not None:
        sound = isinstance(result.demonstrations, tuple) and all(
            isinstance(x, Demonstration) for x in result.demonstrations
        )
        yield sound, "demonstrations as a tuple of `Demonstration`s", ""
        mend = "write `edits_demonstrations: ClassVar[bool] = True` in the class body"
        yield (
            strategy.edits_demonstrations,
            "no change of demonstrations unless the class says so",
            mend,
        )
    if (described := result.field_descriptions) is not None:
        texts = isinstance(described, Mapping) and all(
            isinstance(text, str) for text in described.values()
        )
        wanted = (
            "a description of every field by its name, unchanged ones included, and of no other"
        )
        mend = "start from field_descriptions(given.signature) and given.field_descriptions"
        yield texts and set(described) == set(operator_input().signature.fields), wanted, mend
        mend = "write `edits_fields: ClassVar[bool] = True` in the class body"
        yield (
            strategy.edits_fields,
            "no change of field descriptions unless the class says so",
            mend,
        )


def _has_text(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())


def check_refuses_without_what_it_needs(strategy: Operator) -> None:
    """An operator that needs lessons has nothing to say without them."""
    if strategy.needs_lessons:
        result = _apply(strategy, operator_input(runs=9), "no lessons")
        mend = "refuse, or write `needs_lessons: ClassVar[bool] = False`"
        expect(
            isinstance(result, Refusal),
            "a `Refusal`, since needs_lessons is True",
            f"{result!r:.200}",
            mend,
        )


def _by_value(cases: Mapping[str, OperatorInput]) -> list[tuple[OperatorInput, str]]:
    # The signature is a class, which deepcopy shares.
    return [
        (replace(material, signature=None), repr(material.signature)) for material in cases.values()
    ]


def check_several_uses_at_once(strategy: Operator) -> None:
    """One object makes an update's children at once and leaves its inputs alone."""
    cases = _cases()
    before = copy.deepcopy(_by_value(cases))
    expect_same_at_once(
        {case: partial(strategy.apply, material, context()) for case, material in cases.items()}
    )
    expect(
        before == _by_value(cases),
        "an input unchanged by `apply`",
        "it was changed",
        "build new dicts and tuples",
    )


def check_every_call_goes_through_ask(strategy: Operator) -> None:
    """`context.ask` carries journal, books and retries; another way escapes them."""
    for material in _cases().values():
        expect_calls_by_ask(partial(strategy.apply, material, context()))
