from __future__ import annotations

import random
import threading
from typing import ClassVar

import dspy
import pytest

from combee_dspy.operators import Operator
from combee_dspy.records import Demonstration, Edit, Refusal
from combee_dspy.testing import ConformanceError
from combee_dspy.testing.checks import operators


class Polish(dspy.Signature):
    """Rewrite the instruction."""

    instruction: str = dspy.InputField()
    better: str = dspy.OutputField()


class Right(Operator):
    """Appends the lessons and asks an LM to polish."""

    name: ClassVar[str] = "right"
    edits_demonstrations: ClassVar[bool] = True

    def apply(self, given, context):
        if not given.lessons.lessons:
            return Refusal("there are no lessons")
        text = "\n".join([given.instruction, *(lesson.text for lesson in given.lessons.lessons)])
        (answer,) = context.predict(Polish, [{"instruction": text}])
        demos = tuple(Demonstration(dict(r.inputs), dict(r.outputs), r.example_id) for r in given.runs[:2])
        return Edit(getattr(answer, "better", "") or text, demos)


def returns(make, **attributes):
    methods = {"apply": lambda self, given, context: make(given, context), **attributes}
    return type("Wrong", (Right,), methods)()


def mutate(given, context):
    for run in given.runs:
        run.inputs["question"] = "mutated"
    return Refusal("nothing")


def mutate_signature(given, context):
    given.signature.instructions = given.signature.instructions + "!"
    return Refusal("nothing")


def call_directly(given, context):
    dspy.Predict(Polish)(instruction="x")
    return Refusal("nothing")


def trust(given, context):
    (answer,) = context.predict(Polish, [{"instruction": given.instruction}])
    return Edit(answer.better)


def differ_by_thread(given, context):
    return Edit(f"in the main thread: {threading.current_thread() is threading.main_thread()}")


WRONG = [
    (returns(differ_by_thread), "check_threads_may_share_it", "from four threads"),
    (returns(lambda g, c: "text"), "check_returns_an_edit_or_a_refusal", "returned str"),
    (returns(lambda g, c: g.runs[0]), "check_returns_an_edit_or_a_refusal", "IndexError"),
    (returns(lambda g, c: Refusal(" ")), "check_returns_an_edit_or_a_refusal", "reason"),
    (returns(lambda g, c: Edit()), "check_returns_an_edit_or_a_refusal", "of nothing"),
    (returns(lambda g, c: Edit("  ")), "check_returns_an_edit_or_a_refusal", "with text"),
    (returns(lambda g, c: Edit(demonstrations=[])), "check_returns_an_edit_or_a_refusal", "as a tuple"),
    (
        returns(lambda g, c: Edit("x", ()), edits_demonstrations=False),
        "check_returns_an_edit_or_a_refusal",
        "edits_demonstrations",
    ),
    (
        returns(lambda g, c: Edit(field_descriptions={"question": "a", "answer": "b"})),
        "check_returns_an_edit_or_a_refusal",
        "edits_fields",
    ),
    (
        returns(lambda g, c: Edit(field_descriptions={"answer": "b"}), edits_fields=True),
        "check_returns_an_edit_or_a_refusal",
        "['question']",
    ),
    (
        returns(lambda g, c: Edit(field_descriptions={"answer": 3}), edits_fields=True),
        "check_returns_an_edit_or_a_refusal",
        "texts by field name",
    ),
    (returns(lambda g, c: Edit("x")), "check_refuses_without_what_it_needs", "needs_lessons"),
    (returns(mutate), "check_leaves_its_inputs_alone", "was changed"),
    (returns(mutate_signature), "check_leaves_its_inputs_alone", "was changed"),
    (returns(lambda g, c: Edit(str(random.random()))), "check_same_stream_same_edit", "context.stream"),
    (returns(call_directly), "check_every_call_goes_through_predict", "LM('combee-dspy/forbidden')"),
    (returns(trust), "check_survives_failed_calls", "AttributeError"),
]


@pytest.mark.parametrize("check", operators.CHECKS, ids=lambda c: c.__name__)
def test_a_right_operator_passes(check):
    check(Right())


def test_an_operator_that_needs_no_lessons_may_edit_without_them():
    operators.check_refuses_without_what_it_needs(returns(lambda g, c: Edit("x"), needs_lessons=False))


@pytest.mark.parametrize(("strategy", "check", "says"), WRONG, ids=[f"{w[1]}-{n}" for n, w in enumerate(WRONG)])
def test_wrong_operators_fail_with_a_message_that_teaches(strategy, check, says):
    with pytest.raises(ConformanceError, match=r"expected: (.|\n)+happened: (.|\n)+to mend: ") as caught:
        getattr(operators, check)(strategy)
    assert says in str(caught.value)


def test_every_operator_check_has_a_strategy_that_fails_it():
    assert {check.__name__ for check in operators.CHECKS} == {check for _, check, _ in WRONG}


def test_an_error_of_its_own_is_not_taken_for_a_forbidden_call():
    def broken(given, context):
        raise KeyError("own fault")

    with pytest.raises(KeyError):
        operators.check_every_call_goes_through_predict(returns(broken))
