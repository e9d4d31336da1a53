import dspy
import pytest

from combee_dspy.guards import Guards
from combee_dspy.operators import InstructionChannel
from combee_dspy.records import Edit, FailedCall, Refusal

PARENT = "Answer.\n\nLessons learned:\n- Write formula in lower case.\n- Look at the unit first."
FIELDS = {"question": "What is asked.", "formula": "Its name.\n- One word."}


def place(bench, answer, **changes):
    values = {"instruction": PARENT, "field_descriptions": FIELDS, **changes}
    return bench.apply(InstructionChannel(), {"destinations": answer}, **values)


def test_lessons_move_in_both_directions_word_for_word(bench):
    assert place(bench, ["formula", "instruction", "instruction"]) == Edit(
        instruction="Answer.\n\nLessons learned:\n- Look at the unit first.\n- One word.",
        field_descriptions={
            "question": "What is asked.",
            "formula": "Its name.\n- Write formula in lower case.",
        },
    )
    assert bench.calls[0][1]["lessons"][2] == "3. (now: formula) One word."


def test_lessons_that_all_stay_change_nothing_however_they_were_written(bench):
    parent = f"{PARENT}\n-  One word.\n\nBe brief."
    result = place(bench, ["instruction"] * 3, instruction=parent, field_descriptions={})
    assert result == Refusal("the edit changes nothing")


def test_the_signatures_descriptions_are_the_start(bench):
    result = place(
        bench, ["formula", "instruction"], field_descriptions={"question": "${question}"}
    )
    assert result.field_descriptions == {
        "question": "",
        "formula": "- Write formula in lower case.",
    }


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
def test_an_answer_that_places_nothing_or_wrongly_is_refused_whole(bench, answer):
    assert isinstance(place(bench, answer), Refusal)


def test_protected_lessons_stay_where_they_are(bench):
    result = place(bench, ["formula", "formula"], guards=Guards(keep=["Look at the unit first."]))
    assert len(bench.calls[0][1]["lessons"]) == 2
    assert result.instruction == "Answer.\n\nLessons learned:\n- Look at the unit first."


def test_a_line_of_the_users_own_description_is_not_taken_for_the_lesson(bench):
    fields = {"question": "- One word.\nAny text.\n- One word.", "formula": ""}
    result = place(bench, ["instruction", "instruction", "formula"], field_descriptions=fields)
    assert result.field_descriptions == {
        "question": "- One word.\nAny text.",
        "formula": "- One word.",
    }


def test_where_nothing_can_move_nobody_is_asked_and_a_failed_call_is_a_refusal(bench):
    assert isinstance(bench.apply(InstructionChannel()), Refusal)
    assert bench.calls == []
    assert isinstance(
        bench.apply(InstructionChannel(), FailedCall("TimeoutError"), instruction=PARENT), Refusal
    )


def test_a_field_that_is_named_like_the_instruction_keeps_its_description_and_the_lessons_stay(
    bench,
):
    signature = dspy.Signature("instruction -> formula")
    fields = {"instruction": "What to do.\n- In one word.", "formula": ""}
    result = place(
        bench, ["formula", "instruction"], signature=signature, field_descriptions=fields
    )
    assert bench.calls[0][1]["lessons"] == [
        "1. (now: instruction) Write formula in lower case.",
        "2. (now: instruction) Look at the unit first.",
    ]
    assert result == Edit(
        instruction="Answer.\n\nLessons learned:\n- Look at the unit first.",
        field_descriptions={**fields, "formula": "- Write formula in lower case."},
    )
