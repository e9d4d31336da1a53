from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedQuestion, SimulatedTask
from combee_dspy.lms.simulated.knowledge import same_answer
from combee_dspy.lms.simulated.mistakes import mistake_of, wrong_number


def question(number: int, target: str, wrong: str) -> SimulatedQuestion:
    return SimulatedQuestion(
        f"What is ratio number {number}?", target, wrong, f"F{number:02d}", f"Ratio {number}: a/b."
    )


@given(value=st.floats(allow_nan=False, allow_infinity=False), seed=st.integers(0, 99))
def test_a_spoiled_number_is_wrong_finite_and_tells_its_mistake(value: float, seed: int) -> None:
    target = repr(value)
    wrong = wrong_number(target, seed, "place")
    assert wrong is not None and math.isfinite(float(wrong)) and not same_answer(target, wrong)
    assert mistake_of(target, wrong) in {"scale", "sign", "rounding"}


@pytest.mark.parametrize(
    ("target", "wrong", "mistake"),
    [("0.25", "25", "scale"), ("1,000", "-1000", "sign"), ("3", "4", "rounding"), ("3", "5", None), ("tax", "4", None)],
)
def test_a_mistake_is_known_by_what_it_did(target: str, wrong: str, mistake: str | None) -> None:
    assert mistake_of(target, wrong) == mistake


def test_text_is_not_spoiled() -> None:
    assert wrong_number("EntityName", 0) is wrong_number("nan", 0) is wrong_number("inf", 0) is None


def test_lessons_by_mistake_are_one_for_each_key_and_mistake() -> None:
    rows = (question(1, "0.25", "25"), question(2, "3", "4"), question(3, "8", "-8"))
    rows += (SimulatedQuestion("Which is ratio one again?", "7", "-7", "F01", "Ratio 1: a/b."),)
    task = SimulatedTask(rows, base_rate=0.1, taught_rate=0.9, joiner=",")
    finer = task.by_mistake()
    assert [one.key for one in finer.questions] == ["F01.scale", "F02.rounding", "F03.sign", "F01.sign"]
    assert all(one.lesson.startswith(f"Ratio {one.key[2]}: ") for one in finer.questions)
    assert len(finer.lessons) == len(set(finer.lessons.values())) == 4
    assert [(one.text, one.target, one.wrong) for one in finer.questions] == [
        (one.text, one.target, one.wrong) for one in task.questions
    ]
    assert (finer.base_rate, finer.taught_rate, finer.joiner) == (0.1, 0.9, ",")


def test_lessons_by_mistake_need_usual_mistakes() -> None:
    with pytest.raises(ArgumentValueError, match="usual mistake"):
        SimulatedTask((question(1, "red", "blue"),)).by_mistake()
