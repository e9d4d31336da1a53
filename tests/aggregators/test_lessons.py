from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators._lessons import MAX_LESSON_CHARS, parse_lessons

DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "lessons"),
    [
        (["Give a unit.", "Round late."], ["Give a unit.", "Round late."]),
        (["- Give a unit.", "2) Round late.", "• Use %"], ["Give a unit.", "Round late.", "Use %"]),
        (
            "- Give a unit.\n- Round late,\n  at the end.",
            ["Give a unit.", "Round late, at the end."],
        ),
        ("Here are my lessons:\n1. Give a unit.\n2. Round late.", ["Give a unit.", "Round late."]),
        (["First: a.\n- Give a unit.\n- Round late."], ["Give a unit.", "Round late."]),
        (["Give\na unit."], ["Give a unit."]),
        (["-5 % is a loss"], ["-5 % is a loss"]),
        (["", "   ", "---", "None", "Give a unit.", "give a unit"], ["Give a unit."]),
        (["Give a unit.", {"lesson": "x"}, 3, None], ["Give a unit."]),
        ({"lessons": ["x"]}, []),
        ([["nested"], ["deeper"]], []),
        (DEEP, []),
        ("```\nGive a unit.\n```", ["Give a unit."]),
        (["Rule 1: [2] Give a unit.", "Rule 2: Round."], ["[2] Give a unit.", "Round."]),
        (["**Lesson 1** – [3] Give a unit."], ["[3] Give a unit."]),
        (["规则1:[2]四舍五入。", "规则2:[3]写单位。"], ["[2]四舍五入。", "[3]写单位。"]),
        (["**1** – Give a unit.", "**2** – Round."], ["Give a unit.", "Round."]),
        (["Tier 1: an hour.", "Tier 2: a day."], ["Tier 1: an hour.", "Tier 2: a day."]),
        (["P1: an hour."], ["P1: an hour."]),
        (["1-year bonds pay.", "2-year ones too."], ["1-year bonds pay.", "2-year ones too."]),
        (["Form 1-A is for tax."], ["Form 1-A is for tax."]),
        (["Step 1: add.", "Step 3: round."], ["Step 1: add.", "Step 3: round."]),
        (["[1]: Give a unit.", "[2]: Round."], ["[1]: Give a unit.", "[2]: Round."]),
        (["a\x00b\x1b[31m red"], ["a b [31m red"]),
        (None, []),
        (42, []),
    ],
)
def test_lessons_are_read(value, lessons):
    assert parse_lessons(value) == (lessons, [])


@pytest.mark.parametrize("label", ["1", "Rule 1", "a1"])
def test_a_long_run_of_marks_costs_no_time(label):
    text, began = label + "." * 20_000, time.process_time()
    assert parse_lessons([text])[0] == [text[:1200] + " …"]
    assert time.process_time() - began < 2


def test_too_many_and_too_long_are_cut_and_said():
    lessons, notes = parse_lessons(
        [f"lesson {number} " + "y" * 2_000 * (number == 0) for number in range(9)], most=4
    )
    assert len(lessons) == 4
    assert len(lessons[0]) <= MAX_LESSON_CHARS + 2
    assert len(notes) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(deadline=None)
@given(value=JSON)
def test_whatever_comes_back_becomes_clean_lines(value):
    lessons, _ = parse_lessons(value, most=5)
    assert len(lessons) <= 5
    assert all(lesson == lesson.strip() and lesson.isprintable() and lesson for lesson in lessons)
