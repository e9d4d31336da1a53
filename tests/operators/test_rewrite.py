import pytest

from combee_dspy.guards import Guards
from combee_dspy.lessons import read_section, write_section
from combee_dspy.operators import Rewrite
from combee_dspy.records import Edit, FailedCall, Lesson, Lessons, Refusal

PARENT = "Answer {name}.\n\nLessons learned:\n- Give a unit."
LESSONS = ["Round\n late.", "round late", "Show 2 digits."]


def test_one_call_writes_the_whole_instruction_from_the_old_one_and_the_lessons(bench):
    answer = {"new_instruction": " Answer {name}.\nGive a unit. Show 2 digits.\nRound late. "}
    result = bench.apply(Rewrite(), answer, instruction=PARENT, lessons=LESSONS)
    assert result == Edit(instruction="Answer {name}.\nGive a unit. Show 2 digits.\nRound late.")
    ((name, values, _, role),) = bench.calls
    assert (name, role) == ("RewriteWithLessons", "proposer")
    assert values == {
        "current_instruction": PARENT,
        "lessons": ["Round late.", "Show 2 digits."],
        "most_words": 6_000,
    }


def test_what_the_call_leaves_out_follows_as_a_section(bench):
    rules = [
        f"Margins of kind {number}: divide by the revenue of the year." for number in range(40)
    ]
    parent = write_section("Answer.", rules[:15])
    answer = {"new_instruction": "Answer.\n" + " ".join(rules[20:32])}
    result = bench.apply(Rewrite(), answer, instruction=parent, lessons=rules[15:])
    own, section = read_section(result.instruction)
    assert own == answer["new_instruction"]
    assert section == [*rules[:20], *rules[32:]]
    assert len(bench.calls) == 1


def test_what_more_reflections_stand_behind_is_shown_first(bench):
    lessons = Lessons(
        "route",
        lessons=(Lesson("Use roi.", (1,)), Lesson("Round late.", (2, 3)), Lesson("Add.", (4,))),
    )
    bench.apply(
        Rewrite(), {"new_instruction": "Answer {name}."}, instruction=PARENT, lessons=lessons
    )
    assert bench.calls[0][1]["lessons"] == ["Round late.", "Use roi.", "Add."]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (FailedCall("TimeoutError: x"), "TimeoutError: x"),
        ({"new_instruction": None}, "cannot be read"),
        ({"new_instruction": ["Answer {name}."]}, "cannot be read"),
        ({"new_instruction": "  "}, "empty"),
        ({"new_instruction": PARENT + "\n- Round late.\n- Show 2 digits."}, "changes nothing"),
        ({"new_instruction": "Answer the firm."}, "{name}"),
        ({"new_instruction": "Answer {name}." + " More." * 9_000}, "8,000"),
    ],
)
def test_an_answer_that_cannot_stand_is_refused_with_its_reason(bench, answer, reason):
    parent = PARENT + "\n- Round late.\n- Show 2 digits." if "changes" in reason else PARENT
    result = bench.apply(Rewrite(), answer, instruction=parent, lessons=LESSONS)
    assert isinstance(result, Refusal) and reason in result.reason


def test_guards_bound_the_text_and_keep_their_rules(bench):
    values = {"instruction": PARENT, "lessons": LESSONS}
    long = {"new_instruction": "Answer {name}." + " Then round." * 9}
    assert isinstance(bench.apply(Rewrite(), long, guards=Guards(max_tokens=20), **values), Refusal)
    assert bench.calls[0][1]["most_words"] == 15
    short = {"new_instruction": "Answer {name}."}
    edit = bench.apply(Rewrite(), short, guards=Guards(keep=["Give a unit."]), **values)
    assert "Give a unit." in edit.instruction
    ruled = {**values, "instruction": "Give a unit. " + PARENT}
    lost = bench.apply(Rewrite(), short, guards=Guards(keep=["Give a unit. Answer"]), **ruled)
    assert isinstance(lost, Refusal) and "Give a unit. Answer" in lost.reason


def test_nothing_is_asked_without_lessons_or_where_the_aggregator_wrote_the_text(bench):
    assert bench.apply(Rewrite(), lessons=["  "]) == Refusal("there are no lessons to work in")
    written = Lessons("route", rewrite=" Answer better. ")
    assert bench.apply(Rewrite(), lessons=written) == Edit(instruction="Answer better.")
    assert bench.calls == []


def test_no_more_lessons_are_shown_than_one_call_takes_and_the_others_follow(bench):
    many = [f"{number} " + f"word{number} " * 1_000 for number in range(40)]
    result = bench.apply(Rewrite(max_tokens=10**6), {"new_instruction": "Answer it."}, lessons=many)
    assert 0 < len(bench.calls[0][1]["lessons"]) < 40
    assert len(read_section(result.instruction)[1]) == 40
