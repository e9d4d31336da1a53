from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from combee_dspy.events import ErrorRaised, Event
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import Insert
from combee_dspy.operators._section import read_section, write_section
from combee_dspy.records import Edit, FailedCall, Lesson, Lessons, Refusal
from combee_dspy.reflections import estimate_tokens

LONG = "When the question asks for a margin divide the income by the revenue and give the result as a percentage"


def test_lessons_follow_the_instruction_as_bullets(make: Any) -> None:
    context, asked = make.context()
    edit = Insert().apply(make.given(lessons=make.lessons("Give a unit.", "Round\n  late.")), context)
    assert edit == Edit(instruction="Answer.\n\nLessons learned:\n- Give a unit.\n- Round late.")
    assert asked == []


def test_an_empty_instruction_gets_the_section_alone(make: Any) -> None:
    edit = Insert().apply(make.given(instruction="", lessons=make.lessons("Give a unit.")), make.context()[0])
    assert edit == Edit(instruction="Lessons learned:\n- Give a unit.")


def test_present_lessons_keep_their_place_and_near_duplicates_go(make: Any) -> None:
    before = f"Answer.\n\nLessons learned:\n- Give a unit.\n- {LONG}."
    lessons = make.lessons("Round late.", LONG + ", please", "give a unit", "Round late!")
    edit = Insert().apply(make.given(instruction=before, lessons=lessons), make.context()[0])
    assert edit == Edit(instruction=before + "\n- Round late.")


def test_nothing_new_is_refused(make: Any) -> None:
    before = "Answer.\n\nLessons learned:\n- Give a unit."
    result = Insert().apply(make.given(instruction=before, lessons=make.lessons("give a unit")), make.context()[0])
    assert result == Refusal("every lesson is in the instruction already")


def test_no_lessons_are_refused(make: Any) -> None:
    assert isinstance(Insert().apply(make.given(), make.context()[0]), Refusal)


def test_a_rewrite_is_the_edit(make: Any) -> None:
    given = make.given(lessons=Lessons("route", rewrite=" Better.\nMuch.\n"))
    assert Insert().apply(given, make.context()[0]) == Edit(instruction="Better.\nMuch.")


@pytest.mark.parametrize("rewrite", ["Answer.", " ", ""])
def test_a_rewrite_that_changes_nothing_is_refused(make: Any, rewrite: str) -> None:
    given = make.given(lessons=Lessons("route", rewrite=rewrite))
    assert isinstance(Insert().apply(given, make.context()[0]), Refusal)


def test_a_section_over_budget_is_condensed_by_one_call(make: Any) -> None:
    lessons = [f"Lesson {number}: {LONG}." for number in range(10)]
    context, asked = make.context({"shorter_lessons": ["Use percent.", "use PERCENT"]})
    edit = Insert(max_tokens=60).apply(make.given(lessons=make.lessons(*lessons)), context)
    assert edit == Edit(instruction="Answer.\n\nLessons learned:\n- Use percent.")
    ((name, values, role),) = asked
    assert (name, role) == ("CondenseLessons", "proposer")
    assert values["lessons"] == lessons
    assert values["instruction"] == "Answer."


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (FailedCall("TimeoutError: x"), "TimeoutError: x"),
        ({"shorter_lessons": []}, "empty"),
        ({"shorter_lessons": None}, "empty"),
        ({"shorter_lessons": "Use percent."}, "empty"),
        ({"shorter_lessons": [LONG, LONG + " in 2020", LONG + " in 2021"]}, "still takes"),
    ],
)
def test_what_does_not_fit_is_left_out_whole_and_said(make: Any, answer: Any, reason: str) -> None:
    events: list[Event] = []
    context = replace(make.context(answer)[0], emit=events.append)
    lessons = [f"Lesson {number}: {LONG}." for number in range(10)]
    edit = Insert(max_tokens=60).apply(make.given(lessons=make.lessons(*lessons)), context)
    assert isinstance(edit, Edit) and edit.instruction is not None
    own, kept = read_section(edit.instruction)
    assert own == "Answer."
    assert kept and set(kept) < {*lessons, LONG, LONG + " in 2020", LONG + " in 2021"}
    assert estimate_tokens(write_section("", kept)) <= 60
    (said,) = events
    assert isinstance(said, ErrorRaised) and not said.fatal
    assert said.where == "insert into route"
    assert reason in said.error and "left out" in said.error


def test_where_not_one_lesson_fits_the_edit_is_refused(make: Any) -> None:
    context, _ = make.context(FailedCall("TimeoutError: x"))
    result = Insert(max_tokens=6).apply(make.given(lessons=make.lessons(LONG, LONG + " in 2020")), context)
    assert isinstance(result, Refusal)
    assert "TimeoutError: x" in result.reason


def test_lessons_that_more_reflections_stand_behind_stay(make: Any) -> None:
    found = tuple(Lesson(f"Lesson {number}: {LONG}.", tuple(range(number % 4))) for number in range(12))
    context, _ = make.context(FailedCall("TimeoutError: x"))
    edit = Insert(max_tokens=110).apply(make.given(lessons=Lessons("answer", lessons=found)), context)
    kept = read_section(edit.instruction)[1]
    assert kept == [found[number].text for number in (3, 7, 11)]


def test_present_lessons_keep_their_share_and_do_not_keep_new_ones_out(make: Any) -> None:
    present = [f"Rule {number}: {LONG}." for number in range(6)]
    context, _ = make.context(FailedCall("TimeoutError: x"))
    lessons = make.lessons(*[f"Lesson {number}: {LONG}." for number in range(20, 26)])
    given = make.given(instruction=write_section("Answer.", present), lessons=lessons)
    edit = Insert(max_tokens=200).apply(given, context)
    kept = read_section(edit.instruction)[1]
    old = [lesson for lesson in kept if lesson in present]
    assert old == present[: len(old)] and 0 < len(old) < 6
    assert len(kept) > len(old)


def test_no_more_lessons_are_shown_than_one_call_takes(make: Any) -> None:
    lessons = [f"Lesson {number}: {LONG} number {number}." for number in range(5_000)]
    events: list[Event] = []
    context, asked = make.context({"shorter_lessons": ["Use percent."]})
    edit = Insert().apply(make.given(lessons=make.lessons(*lessons)), replace(context, emit=events.append))
    assert isinstance(edit, Edit)
    shown = asked[0][1]["lessons"]
    assert estimate_tokens("\n".join(shown)) <= 24_000
    (said,) = events
    assert isinstance(said, ErrorRaised) and f"{5_000 - len(shown):,} are left out" in said.error


def test_the_users_own_text_does_not_count(make: Any) -> None:
    given = make.given(instruction="word " * 10_000, lessons=make.lessons("Give a unit."))
    edit = Insert(max_tokens=100).apply(given, make.context()[0])
    assert isinstance(edit, Edit)
    assert edit.instruction == "word " * 10_000 + "\n\nLessons learned:\n- Give a unit."


@pytest.mark.parametrize("params", [{"max_tokens": 0}, {"similarity": 0.0}, {"similarity": 1.5}])
def test_parameters_out_of_range_are_refused(make: Any, params: dict[str, Any]) -> None:
    with pytest.raises(ArgumentValueError):
        Insert(**params).apply(make.given(lessons=make.lessons("x y")), make.context()[0])
