from __future__ import annotations

from typing import Any

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.operators import InstructionChannel
from combee_dspy.operators._examples import WorkedExample
from combee_dspy.records import Demonstration, Edit, FailedCall, Refusal

PARENT = "Answer.\n\nLessons learned:\n- Write formula in lower case.\n- Look at the unit first."
FIELDS = {"question": "What is asked.", "formula": "Its name.\n- One word."}
SHOWN = "Give the name of one formula from the book.\nExample:\nQuestion: How much came back?\nFormula: roi\nBe brief."


def place(make: Any, answer: Any, **changes: Any) -> tuple[Edit | Refusal, list[Any]]:
    context, asked = make.context({"destinations": answer})
    values = {"instruction": PARENT, "field_descriptions": FIELDS, **changes}
    return InstructionChannel().apply(make.given(**values), context), asked


def show(make: Any, *examples: Any, answer: Any = None, **changes: Any) -> Edit | Refusal:
    context, _ = make.context({"worked_examples": list(examples) if answer is None else answer})
    return InstructionChannel().apply(make.given(**{"instruction": SHOWN, **changes}), context)


def example(
    first: int = 2, last: int = 4, question: Any = "How much came back?", formula: Any = "roi", **more: Any
) -> WorkedExample:
    return WorkedExample(
        first_line=first, last_line=last, inputs={"question": question, **more}, outputs={"formula": formula}
    )


def test_lessons_move_in_both_directions_word_for_word(make: Any) -> None:
    result, asked = place(make, ["formula", "instruction", "instruction"])
    assert result == Edit(
        instruction="Answer.\n\nLessons learned:\n- Look at the unit first.\n- One word.",
        field_descriptions={"question": "What is asked.", "formula": "Its name.\n- Write formula in lower case."},
    )
    assert asked[0][1]["lessons"][2] == "3. (now: formula) One word."


def test_all_lessons_may_leave_the_instruction(make: Any) -> None:
    result, _ = place(make, ["formula", "question", "formula"])
    assert isinstance(result, Edit)
    assert result.instruction == "Answer."
    assert result.field_descriptions == {
        "question": "What is asked.\n- Look at the unit first.",
        "formula": "Its name.\n- One word.\n- Write formula in lower case.",
    }


def test_a_lesson_between_two_fields_leaves_the_instruction_alone(make: Any) -> None:
    result, _ = place(make, ["instruction", "instruction", "question"])
    assert isinstance(result, Edit)
    assert result.instruction is None


def test_the_signatures_descriptions_are_the_start(make: Any) -> None:
    result, _ = place(make, ["formula", "instruction"], field_descriptions={"question": "${question}"})
    assert isinstance(result, Edit)
    assert result.field_descriptions == {"question": "", "formula": "- Write formula in lower case."}


@pytest.mark.parametrize(
    "answer",
    [
        ["formula"],
        ["formula"] * 4,
        ["answer", "instruction", "formula"],
        ["Formula", "instruction", "formula"],
        [3, "instruction", "formula"],
        [None, None, None],
        "formula",
        None,
        [],
        ["instruction", "instruction", "formula"],
    ],
)
def test_an_answer_that_places_nothing_or_wrongly_is_refused_whole(make: Any, answer: Any) -> None:
    assert isinstance(place(make, answer)[0], Refusal)


def test_protected_lessons_stay_where_they_are(make: Any) -> None:
    guards = Guards(keep=["Look at the unit first."])
    result, asked = place(make, ["formula", "formula"], guards=guards)
    assert len(asked[0][1]["lessons"]) == 2
    assert isinstance(result, Edit)
    assert result.instruction == "Answer.\n\nLessons learned:\n- Look at the unit first."


def test_an_example_becomes_a_demonstration(make: Any) -> None:
    result = show(make, example())
    assert result == Edit(
        instruction="Give the name of one formula from the book.\nBe brief.",
        demonstrations=(Demonstration({"question": "How much came back?"}, {"formula": "roi"}),),
    )


def test_it_joins_those_that_are_there(make: Any) -> None:
    old = Demonstration({"question": "Other?"}, {"formula": "npv"}, "a" * 64)
    result = show(make, example(), demonstrations=(old,))
    assert isinstance(result, Edit)
    assert [one.example_id for one in result.demonstrations or ()] == ["a" * 64, None]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([example(formula="npv")], "does not say"),
        ([example(question="How much came back, then?")], "does not say"),
        ([example(question="")], "does not say"),
        ([example(context="Answer")], "fields"),
        ([example(2, 4, formula="come")], "does not say"),
        ([example(1, 5)], "more than the example"),
        ([example(0, 4)], "cannot be"),
        ([example(4, 2)], "cannot be"),
        ([example(2, 99)], "cannot be"),
        ([example(), example()], "cannot be"),
        ([{"first_line": 1}], "no example"),
        ([], "no example"),
        ("text", "no example"),
        (3, "no example"),
    ],
)
def test_an_example_that_is_none_is_refused_whole(make: Any, found: Any, reason: str) -> None:
    result = show(make, answer=found)
    assert isinstance(result, Refusal)
    assert reason in result.reason


def test_a_value_of_another_type_is_refused(make: Any) -> None:
    text = SHOWN.replace("Formula: roi", "Formula: How")
    result = show(make, example(formula="How"), instruction=text)
    assert isinstance(result, Refusal)
    assert "type" in result.reason


def test_a_demonstration_that_is_there_already_is_refused(make: Any) -> None:
    old = Demonstration({"question": "How much came back?"}, {"formula": "roi"})
    assert isinstance(show(make, example(), demonstrations=(old,)), Refusal)


def test_too_many_demonstrations_are_refused(make: Any) -> None:
    context, _ = make.context({"worked_examples": [example()]}, {"worked_examples": [example()]})
    old = tuple(Demonstration({"question": f"q{number}"}, {"formula": "npv"}) for number in range(2))
    given = make.given(instruction=SHOWN, demonstrations=old)
    assert isinstance(InstructionChannel(max_demonstrations=2).apply(given, context), Refusal)
    assert isinstance(InstructionChannel(max_tokens=20).apply(given, context), Refusal)


def test_an_instruction_of_examples_alone_is_not_emptied(make: Any) -> None:
    only = "Question: How much came back?\nFormula: roi"
    assert isinstance(show(make, example(1, 2), instruction=only), Refusal)


def test_where_nothing_can_move_nobody_is_asked(make: Any) -> None:
    context, asked = make.context()
    assert isinstance(InstructionChannel().apply(make.given(), context), Refusal)
    assert asked == []


def test_a_failed_call_is_a_refusal(make: Any) -> None:
    context, _ = make.context(FailedCall("TimeoutError: late"))
    assert isinstance(InstructionChannel().apply(make.given(instruction=PARENT), context), Refusal)


def test_parameters_out_of_range_are_errors() -> None:
    for operator in (InstructionChannel(max_demonstrations=0), InstructionChannel(max_tokens=0)):
        with pytest.raises(ArgumentValueError):
            operator.validate()


def test_a_line_of_the_users_own_description_is_not_taken_for_the_lesson(make: Any) -> None:
    fields = {"question": "- One word.\nAny text.\n- One word.", "formula": ""}
    result, _ = place(make, ["instruction", "instruction", "formula"], field_descriptions=fields)
    assert isinstance(result, Edit)
    assert result.field_descriptions == {"question": "- One word.\nAny text.", "formula": "- One word."}
