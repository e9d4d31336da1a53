import pytest

from combee_dspy.guards import Guards
from combee_dspy.operators import InstructionChannel
from combee_dspy.records import Demonstration, Edit, FailedCall, Refusal

PARENT = "Answer.\n\nLessons learned:\n- Write formula in lower case.\n- Look at the unit first."
FIELDS = {"question": "What is asked.", "formula": "Its name.\n- One word."}
SHOWN = "Give the name of one formula from the book.\nExample:\nQuestion: How much came back?\nFormula: roi\nBe brief."
CAME_BACK = Demonstration({"question": "How much came back?"}, {"formula": "roi"})


def place(bench, answer, **changes):
    values = {"instruction": PARENT, "field_descriptions": FIELDS, **changes}
    return bench.apply(InstructionChannel(), {"destinations": answer}, **values)


def show(bench, *examples, operator=None, **changes):
    values = {"instruction": SHOWN, **changes}
    return bench.apply(operator or InstructionChannel(), {"worked_examples": list(examples)}, **values)


def example(first=2, last=4, question="How much came back?", formula="roi", **more):
    # Plain JSON, as a journal gives an answer back.
    inputs = {"question": question, **more}
    return {"first_line": first, "last_line": last, "inputs": inputs, "outputs": {"formula": formula}}


def test_lessons_move_in_both_directions_word_for_word(bench):
    assert place(bench, ["formula", "instruction", "instruction"]) == Edit(
        instruction="Answer.\n\nLessons learned:\n- Look at the unit first.\n- One word.",
        field_descriptions={"question": "What is asked.", "formula": "Its name.\n- Write formula in lower case."},
    )
    assert bench.asked[0][1]["lessons"][2] == "3. (now: formula) One word."


def test_all_lessons_may_leave_the_instruction(bench):
    assert place(bench, ["formula", "question", "formula"]) == Edit(
        instruction="Answer.",
        field_descriptions={
            "question": "What is asked.\n- Look at the unit first.",
            "formula": "Its name.\n- One word.\n- Write formula in lower case.",
        },
    )


def test_a_lesson_between_two_fields_leaves_the_instruction_alone(bench):
    assert place(bench, ["instruction", "instruction", "question"]).instruction is None


def test_the_signatures_descriptions_are_the_start(bench):
    result = place(bench, ["formula", "instruction"], field_descriptions={"question": "${question}"})
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
def test_an_answer_that_places_nothing_or_wrongly_is_refused_whole(bench, answer):
    assert isinstance(place(bench, answer), Refusal)


def test_protected_lessons_stay_where_they_are(bench):
    result = place(bench, ["formula", "formula"], guards=Guards(keep=["Look at the unit first."]))
    assert len(bench.asked[0][1]["lessons"]) == 2
    assert result.instruction == "Answer.\n\nLessons learned:\n- Look at the unit first."


def test_a_line_of_the_users_own_description_is_not_taken_for_the_lesson(bench):
    fields = {"question": "- One word.\nAny text.\n- One word.", "formula": ""}
    result = place(bench, ["instruction", "instruction", "formula"], field_descriptions=fields)
    assert result.field_descriptions == {"question": "- One word.\nAny text.", "formula": "- One word."}


def test_an_example_becomes_a_demonstration_and_joins_those_that_are_there(bench):
    left = "Give the name of one formula from the book.\nBe brief."
    assert show(bench, example()) == Edit(instruction=left, demonstrations=(CAME_BACK,))
    old = Demonstration({"question": "Other?"}, {"formula": "npv"}, "a" * 64)
    assert show(bench, example(), demonstrations=(old,)).demonstrations == (old, CAME_BACK)


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
        ([{"first_line": 1}], "cannot be read"),
        ([3], "cannot be read"),
        ([], "no example"),
    ],
)
def test_an_example_that_is_none_is_refused_whole(bench, found, reason):
    result = show(bench, *found)
    assert isinstance(result, Refusal) and reason in result.reason


def test_a_value_of_another_type_is_refused(bench):
    result = show(bench, example(formula="How"), instruction=SHOWN.replace("Formula: roi", "Formula: How"))
    assert isinstance(result, Refusal) and "type" in result.reason


def test_a_demonstration_that_is_there_already_or_one_too_many_is_refused(bench):
    assert isinstance(show(bench, example(), demonstrations=(CAME_BACK,)), Refusal)
    old = tuple(Demonstration({"question": f"q{number}"}, {"formula": "npv"}) for number in range(2))
    for operator in (InstructionChannel(max_demonstrations=2), InstructionChannel(max_tokens=20)):
        assert isinstance(show(bench, example(), operator=operator, demonstrations=old), Refusal)


def test_an_instruction_of_examples_alone_is_not_emptied(bench):
    only = "Question: How much came back?\nFormula: roi"
    assert isinstance(show(bench, example(1, 2), instruction=only), Refusal)


def test_where_nothing_can_move_nobody_is_asked_and_a_failed_call_is_a_refusal(bench):
    assert isinstance(bench.apply(InstructionChannel()), Refusal)
    assert bench.asked == []
    assert isinstance(bench.apply(InstructionChannel(), FailedCall("TimeoutError"), instruction=PARENT), Refusal)
