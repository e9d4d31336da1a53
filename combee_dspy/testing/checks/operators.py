"""Checks for operators: lessons and rollouts in, an edit out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Demonstration, Edit, Refusal
from combee_dspy.testing.checks._expect import attempt, expect
from combee_dspy.testing.doubles import ScriptedPredict, context, operator_input, watch_lms

__all__ = ["CHECKS"]


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


_LEARNED = "Answer the question.\n\nLessons learned:\n- Carry the tens.\n- Write the answer in digits.\n- Check it."
_WITH_EXAMPLE = "Answer the question.\nQuestion: What is 2 plus 2?\nAnswer: 4"


def check_returns_an_edit_or_a_refusal(strategy: Operator) -> None:
    """Whatever there is to work on."""
    for case, given in _cases().items():
        _check_result(strategy, case, _apply(strategy, given, case))


def _apply(strategy: Operator, given: OperatorInput, case: str, predict: ScriptedPredict | None = None) -> Any:
    return attempt(
        lambda: strategy.apply(given, context(predict)),
        f"`apply` returns, given {case}",
        "return Refusal(reason) where there is nothing to do",
    )


def _check_result(strategy: Operator, case: str, result: Any) -> None:
    expect(
        isinstance(result, (Edit, Refusal)),
        "an `Edit` or a `Refusal`",
        f"given {case} it returned {type(result).__name__}",
        "return Edit(instruction=…), Edit(demonstrations=(…)), Edit(field_descriptions={…}) or Refusal(reason)",
    )
    if isinstance(result, Refusal):
        expect(
            isinstance(result.reason, str) and result.reason.strip(),
            "a refusal with a reason of one sentence",
            f"given {case}: {result!r}",
            "say what was missing: it is all that the log will show",
        )
        return
    _check_edit(strategy, case, result)


def _check_edit(strategy: Operator, case: str, edit: Edit) -> None:
    expect(
        edit.instruction is not None or edit.demonstrations is not None or edit.field_descriptions is not None,
        "an edit that changes something",
        f"given {case}: an `Edit` of nothing",
        "return Refusal(reason) instead",
    )
    expect(
        edit.instruction is None or (isinstance(edit.instruction, str) and edit.instruction.strip()),
        "an instruction with text",
        f"given {case}: {edit.instruction!r:.200}",
        "leave `instruction` out, or refuse",
    )
    shown = edit.demonstrations
    expect(
        shown is None or (isinstance(shown, tuple) and all(isinstance(demo, Demonstration) for demo in shown)),
        "demonstrations as a tuple of `Demonstration`s",
        f"given {case}: {shown!r:.200}",
        "return Demonstration(inputs, outputs, example_id) objects",
    )
    expect(
        shown is None or strategy.edits_demonstrations,
        "no change of demonstrations unless the class says so",
        f"given {case}: {len(shown or ())} demonstrations, and edits_demonstrations is False",
        "write `edits_demonstrations: ClassVar[bool] = True` in the class body",
    )
    _check_fields(strategy, case, edit.field_descriptions)


def _check_fields(strategy: Operator, case: str, described: Any) -> None:
    if described is None:
        return
    expect(
        isinstance(described, Mapping)
        and all(isinstance(name, str) and isinstance(text, str) for name, text in described.items()),
        "field descriptions as texts by field name",
        f"given {case}: {described!r:.200}",
        "return a dict from names to texts",
    )
    known = set(operator_input().signature.fields)
    expect(
        set(described) == known,
        "a description of every field, unchanged ones included, and of no other",
        f"given {case}: {sorted(set(described) ^ known)!r:.200}",
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
    if not strategy.needs_lessons:
        return
    result = _apply(strategy, operator_input(runs=9), "no lessons")
    expect(
        isinstance(result, Refusal),
        "a `Refusal` without lessons, since needs_lessons is True",
        f"{result!r:.200}",
        "refuse, or write `needs_lessons: ClassVar[bool] = False`",
    )


def check_leaves_its_inputs_alone(strategy: Operator) -> None:
    """The parent lives on, and other operators work on the same input."""
    for case, given in _cases().items():
        # The signature is a class, which deepcopy shares: the rest of the input is compared by value.
        before = copy.deepcopy((given.instruction, given.demonstrations, given.lessons, given.runs))
        fields = repr(given.signature)
        _apply(strategy, given, case)
        expect(
            before == (given.instruction, given.demonstrations, given.lessons, given.runs)
            and fields == repr(given.signature),
            "an input unchanged by `apply`",
            f"given {case}, it was changed",
            "build new dicts and tuples; `dict(run.inputs)` copies one level",
        )


def check_same_stream_same_edit(strategy: Operator) -> None:
    """A resumed run must make the same child."""
    for case, given in _cases().items():
        first, second = (_apply(strategy, given, case) for _ in range(2))
        expect(
            first == second,
            "the same edit for the same input, seed and answers",
            f"given {case}: {first!r:.200} and then {second!r:.200}",
            "draw from `context.stream(…)` only; no clock, no `random`, no `hash()`, no order of sets",
        )


def check_threads_may_share_it(strategy: Operator) -> None:
    """Children of one iteration are made at the same time by one object, with any number of workers."""
    cases = _cases()
    alone = [_apply(strategy, given, case) for case, given in cases.items()]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda item: _apply(strategy, item[1], item[0]), cases.items()))
    expect(
        together == alone,
        "the same edits from four threads at once as from one",
        f"different ones, given {[c for c, one, two in zip(cases, alone, together, strict=True) if one != two]}",
        "keep nothing on self or in the module between calls: what belongs to one call stays in its variables",
    )


def check_every_call_goes_through_predict(strategy: Operator) -> None:
    """`predict` carries the ledger, the retries and the cache; another way escapes the books."""
    with watch_lms() as seen:
        for given in _cases().values():
            try:
                strategy.apply(given, context())
            except Exception:
                # An LM that refuses may well make it raise; without such a call it must not.
                if not seen:
                    raise
    expect(
        not seen,
        "LM calls by `context.predict` only",
        f"called {', '.join(seen)}",
        "replace dspy.Predict(signature)(…) by context.predict(signature, [inputs, …])",
    )


def check_survives_failed_calls(strategy: Operator) -> None:
    """A failed call costs an edit, not the run."""
    for case, given in _cases().items():
        for predict in (ScriptedPredict(fail=lambda call: True), ScriptedPredict(empty=True)):
            _check_result(strategy, case, _apply(strategy, given, f"{case} and failing LM calls", predict))


CHECKS = (
    check_returns_an_edit_or_a_refusal,
    check_refuses_without_what_it_needs,
    check_leaves_its_inputs_alone,
    check_same_stream_same_edit,
    check_threads_may_share_it,
    check_every_call_goes_through_predict,
    check_survives_failed_calls,
)
