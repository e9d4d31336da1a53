import pytest

from combee_dspy.guards import Guards
from combee_dspy.operators import Rewrite
from combee_dspy.records import Edit, FailedCall, Lesson, Lessons, Refusal

PARENT = "Answer {name}.\n\nLessons learned:\n- Give a unit."
LESSONS = ["Round\n late.", "round late", "Show 2 digits."]


def test_one_call_writes_the_whole_instruction_from_the_old_one_and_the_lessons(bench):
    answer = {"new_instruction": " Answer {name} with a unit.\nRound late. "}
    result = bench.apply(Rewrite(), answer, instruction=PARENT, lessons=LESSONS)
    assert result == Edit(instruction="Answer {name} with a unit.\nRound late.")
    ((name, values, _, role),) = bench.asked
    assert (name, role) == ("RewriteWithLessons", "proposer")
    assert values == {"current_instruction": PARENT, "lessons": ["Round late.", "Show 2 digits."], "most_words": 6_000}


def test_what_more_reflections_stand_behind_is_shown_first(bench):
    lessons = Lessons("route", lessons=(Lesson("Use roi.", (1,)), Lesson("Round late.", (2, 3)), Lesson("Add.", (4,))))
    bench.apply(Rewrite(), {"new_instruction": "Answer {name}."}, instruction=PARENT, lessons=lessons)
    assert bench.asked[0][1]["lessons"] == ["Round late.", "Use roi.", "Add."]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (FailedCall("TimeoutError: x"), "TimeoutError: x"),
        ({"new_instruction": None}, "cannot be read"),
        ({"new_instruction": ["Answer {name}."]}, "cannot be read"),
        ({"new_instruction": "  "}, "empty"),
        ({"new_instruction": PARENT}, "changes nothing"),
        ({"new_instruction": "Answer the firm."}, "{name}"),
        ({"new_instruction": "Answer {name}." + " More." * 9_000}, "8,000"),
    ],
)
def test_an_answer_that_cannot_stand_is_refused_with_its_reason(bench, answer, reason):
    result = bench.apply(Rewrite(), answer, instruction=PARENT, lessons=LESSONS)
    assert isinstance(result, Refusal) and reason in result.reason


def test_guards_bound_the_text_and_keep_their_rules(bench):
    values = {"instruction": PARENT, "lessons": LESSONS}
    long = {"new_instruction": "Answer {name}." + " Then round." * 9}
    assert isinstance(bench.apply(Rewrite(), long, guards=Guards(max_tokens=20), **values), Refusal)
    assert bench.asked[0][1]["most_words"] == 15
    short = {"new_instruction": "Answer {name}."}
    result = bench.apply(Rewrite(), short, guards=Guards(keep=["Give a unit."]), **values)
    assert isinstance(result, Refusal) and "Give a unit." in result.reason


def test_nothing_is_asked_without_lessons_or_where_the_aggregator_wrote_the_text(bench):
    assert bench.apply(Rewrite(), lessons=["  "]) == Refusal("there are no lessons to work in")
    written = Lessons("route", rewrite=" Answer better. ")
    assert bench.apply(Rewrite(), lessons=written) == Edit(instruction="Answer better.")
    assert bench.asked == []


def test_more_lessons_than_one_call_takes_are_left_out_and_said(bench):
    many = [f"{number} " + f"word{number} " * 1_000 for number in range(40)]
    assert isinstance(bench.apply(Rewrite(), {"new_instruction": "Answer it."}, lessons=many), Edit)
    shown = len(bench.asked[0][1]["lessons"])
    assert 0 < shown < 40
    (said,) = bench.warnings
    assert f"{40 - shown} of 40 lessons are left out" in said
