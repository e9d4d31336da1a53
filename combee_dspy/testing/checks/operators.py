"""Checks for operators: lessons and rollouts in, an edit out."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Demonstration, Edit, Refusal
from combee_dspy.testing._kit import attempt, expect
from combee_dspy.testing.doubles import ScriptedAsk, context, expect_calls_by_ask, operator_input

_LEARNED = "Answer the question.\n\nLessons learned:\n- Carry the tens.\n- Write the answer in digits.\n- Check it."
_WITH_EXAMPLE = "Answer the question.\nQuestion: What is 2 plus 2?\nAnswer: 4"


def _cases() -> dict[str, OperatorInput]:
    return {
        "no lessons and no rollouts": operator_input(),
        "one lesson": operator_input(lessons=1),
        "one rollout": operator_input(runs=1),
        "lessons and rollouts": operator_input(lessons=5, runs=9),
        "demonstrations already there": operator_input(lessons=2, runs=9, demonstrations=4),
        "200 lessons and 200 rollouts": operator_input(lessons=200, runs=200),
        "an instruction with lessons": replace(operator_input(lessons=2, runs=9), instruction=_LEARNED),
        "an instruction with an example": replace(operator_input(lessons=1, runs=3), instruction=_WITH_EXAMPLE),
    }


def _apply(strategy: Operator, given: OperatorInput, case: str, ask: ScriptedAsk | None = None) -> Any:
    return attempt(
        lambda: strategy.apply(given, context(ask)),
        f"`apply` returns, given {case}",
        "return Refusal(reason) where there is nothing to do",
    )


def check_returns_an_edit_or_a_refusal(strategy: Operator) -> None:
    """Whatever there is to work on, and where every call fails or is answered with nothing."""
    for case, given in _cases().items():
        for ask in (ScriptedAsk(), ScriptedAsk(fail=lambda call: True), ScriptedAsk(empty=True)):
            _check_result(strategy, case, _apply(strategy, given, case, ask))


def _check_result(strategy: Operator, case: str, result: Any) -> None:
    expect(
        isinstance(result, (Edit, Refusal)),
        "an `Edit` or a `Refusal`",
        f"given {case} it returned {type(result).__name__}",
        "return Edit(instruction=…), Edit(demonstrations=(…)), Edit(field_descriptions={…}) or Refusal(reason)",
    )
    if isinstance(result, Refusal):
        said = isinstance(result.reason, str) and result.reason.strip()
        expect(said, "a refusal with a reason of one sentence", f"given {case}: {result!r}")
        return
    expect(
        result != Edit(),
        "an edit that changes something",
        f"given {case}: an `Edit` of nothing",
        "return Refusal(reason) instead",
    )
    expect(
        result.instruction is None or (isinstance(result.instruction, str) and result.instruction.strip()),
        "an instruction with text",
        f"given {case}: {result.instruction!r:.200}",
        "leave `instruction` out, or refuse",
    )
    shown = result.demonstrations
    expect(
        shown is None or (isinstance(shown, tuple) and all(isinstance(demo, Demonstration) for demo in shown)),
        "demonstrations as a tuple of `Demonstration`s",
        f"given {case}: {shown!r:.200}",
    )
    expect(
        shown is None or strategy.edits_demonstrations,
        "no change of demonstrations unless the class says so",
        f"given {case}: {len(shown or ())} demonstrations, and edits_demonstrations is False",
        "write `edits_demonstrations: ClassVar[bool] = True` in the class body",
    )
    if result.field_descriptions is not None:
        _check_fields(strategy, case, result.field_descriptions)


def _check_fields(strategy: Operator, case: str, described: Any) -> None:
    expect(
        isinstance(described, Mapping)
        and all(isinstance(text, str) for text in described.values())
        and set(described) == set(operator_input().signature.fields),
        "a description of every field by its name, unchanged ones included, and of no other",
        f"given {case}: {described!r:.200}",
        "start from field_descriptions(given.signature) and given.field_descriptions",
    )
    expect(
        strategy.edits_fields,
        "no change of field descriptions unless the class says so",
        f"given {case}: they are in the edit, and edits_fields is False",
        "write `edits_fields: ClassVar[bool] = True` in the class body",
    )


def check_refuses_without_what_it_needs(strategy: Operator) -> None:
    """An operator that needs lessons has nothing to say without them."""
    if strategy.needs_lessons:
        result = _apply(strategy, operator_input(runs=9), "no lessons")
        mend = "refuse, or write `needs_lessons: ClassVar[bool] = False`"
        expect(isinstance(result, Refusal), "a `Refusal`, since needs_lessons is True", f"{result!r:.200}", mend)


def check_several_uses_at_once(strategy: Operator) -> None:
    """Children of one update are made at once by one object, the same each time, and their input stays as it is."""
    cases = _cases()
    # The signature is a class, which deepcopy shares: the rest of the input is compared by value.
    before = {
        case: (copy.deepcopy(replace(given, signature=None)), repr(given.signature)) for case, given in cases.items()
    }
    alone = [_apply(strategy, given, case) for case, given in cases.items()]

    async def together() -> list[Any]:
        return await asyncio.gather(*(strategy.apply(given, context()) for given in cases.values()))

    found = attempt(together, "`apply` returns")
    expect(
        found == alone,
        "the same edits for the same inputs, seed and answers, one after another and at once",
        f"different ones, given {[c for c, one, two in zip(cases, alone, found, strict=True) if one != two]}",
        "keep nothing on self or in the module; draw from `context.stream(…)` only; no clock, no order of sets",
    )
    after = {case: (replace(given, signature=None), repr(given.signature)) for case, given in cases.items()}
    expect(before == after, "an input unchanged by `apply`", "it was changed", "build new dicts and tuples")


def check_every_call_goes_through_ask(strategy: Operator) -> None:
    """`context.ask` carries journal, books and retries; another way escapes them."""
    for given in _cases().values():
        expect_calls_by_ask(partial(strategy.apply, given, context()))
