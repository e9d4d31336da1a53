"""The operators' own questions, asked of the simulated service through a real adapter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dspy
import pytest

from combee_dspy.lms.simulated import (
    CapacityModel,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
)
from combee_dspy.operators import Delete, InstructionChannel, Operator, Reorder, Rephrase
from combee_dspy.operators._section import read_section
from combee_dspy.records import Edit, PredictorRun, Refusal

QUESTIONS = tuple(
    SimulatedQuestion(
        text=f"Firm {number} holds {number + 3} crates at ${number * 7 + 5} each; what is it worth?",
        target=f"{number * 10 + 1}.5",
        wrong=f"-{number + 1}",
        key=f"F{number:02d}",
        lesson=f"multiply before you round, case F{number:02d}.",
    )
    for number in range(20)
)
TASK = SimulatedTask(QUESTIONS, base_rate=0.0)
LESSONS = [TASK.lessons[f"F{number:02d}"] for number in range(3)]
PARENT = "Answer.\n\nLessons learned:\n- " + "\n- ".join([LESSONS[0], "Take care.", LESSONS[1], LESSONS[2]])
ADAPTERS = {"chat": dspy.ChatAdapter(), "json": dspy.JSONAdapter()}


@pytest.fixture(autouse=True)
def _no_price_table_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture(params=sorted(ADAPTERS))
def service(request: pytest.FixtureRequest) -> Iterator[SimulatedService]:
    config = SimulatedConfig(time_scale=0.0, capacity=CapacityModel.writing(12))
    with (
        SimulatedService(config, TASK) as running,
        dspy.context(lm=running.lm(cache=False), adapter=ADAPTERS[request.param]),
    ):
        yield running


def ask_service(signature: Any, inputs: Any, *, role: str = "proposer") -> list[Any]:
    return [dspy.Predict(signature)(**values) for values in inputs]


def apply(make: Any, operator: Operator, parent: str = PARENT, notes: str = "") -> Edit | Refusal:
    runs = tuple(
        PredictorRun(f"{number:064x}", {"question": QUESTIONS[number].text}, {"formula": "roi"}, number % 2)
        for number in range(4)
    )
    context = replace(make.context()[0], predict=ask_service, notes=notes)
    return operator.apply(make.given(instruction=parent, runs=runs), context)


def test_the_line_that_teaches_nothing_goes(make: Any, service: SimulatedService) -> None:
    assert apply(make, Delete()) == Edit(instruction=PARENT.replace("- Take care.\n", ""))


def test_and_it_stands_last(make: Any, service: SimulatedService) -> None:
    result = apply(make, Reorder(), notes="At most 400 tokens.")
    assert isinstance(result, Edit)
    assert read_section(result.instruction or "")[1] == [*LESSONS, "Take care."]


def test_rewording_keeps_what_the_lessons_say(make: Any, service: SimulatedService) -> None:
    result = apply(make, Rephrase())
    assert isinstance(result, Edit)
    assert result.instruction != PARENT
    assert all(lesson in (result.instruction or "") for lesson in LESSONS)


def test_rewording_more_than_a_call_can_write_is_refused(make: Any, service: SimulatedService) -> None:
    many = "Answer.\n\nLessons learned:\n- " + "\n- ".join(TASK.lessons.values())
    result = apply(make, Rephrase(), many)
    assert isinstance(result, Refusal)
    assert "21 passages" in result.reason


def test_a_lesson_about_a_field_moves_to_it(make: Any, service: SimulatedService) -> None:
    result = apply(make, InstructionChannel(), PARENT.replace("Take care.", "Write formula in lower case."))
    assert isinstance(result, Edit)
    assert result.instruction == PARENT.replace("- Take care.\n", "")
    assert result.field_descriptions == {"question": "", "formula": "- Write formula in lower case."}
