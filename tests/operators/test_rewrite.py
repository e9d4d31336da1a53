from __future__ import annotations

from dataclasses import replace
from typing import Any

import dspy
import pytest

from combee_dspy import registry
from combee_dspy.events import ErrorRaised, Event
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.lms.simulated import (
    CapacityModel,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
)
from combee_dspy.operators import Rewrite
from combee_dspy.records import Edit, FailedCall, Lesson, Lessons, Refusal
from combee_dspy.testing import checks_for

PARENT = "Answer {name}.\n\nLessons learned:\n- Give a unit."


def rewrite(make: Any, answer: Any, *, operator: Rewrite | None = None, **changes: Any) -> tuple[Any, list[Any]]:
    context, asked = make.context(answer)
    lessons = make.lessons("Round\n late.", "round late", "Show 2 digits.")
    values = {"instruction": PARENT, "lessons": lessons, **changes}
    return (operator or Rewrite()).apply(make.given(**values), context), asked


def test_one_call_writes_the_whole_instruction_from_the_old_one_and_the_lessons(make: Any) -> None:
    result, asked = rewrite(make, {"new_instruction": " Answer {name} with a unit.\nRound late. "})
    assert result == Edit(instruction="Answer {name} with a unit.\nRound late.")
    ((name, values, role),) = asked
    assert (name, role) == ("RewriteWithLessons", "proposer")
    assert values == {"current_instruction": PARENT, "lessons": ["Round late.", "Show 2 digits."], "most_words": 6_000}


def test_what_more_reflections_stand_behind_is_shown_first(make: Any) -> None:
    lessons = Lessons("route", lessons=(Lesson("Use roi.", (1,)), Lesson("Round late.", (2, 3)), Lesson("Add.", (4,))))
    _, asked = rewrite(make, {"new_instruction": "Answer {name}."}, lessons=lessons)
    assert asked[0][1]["lessons"] == ["Round late.", "Use roi.", "Add."]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (FailedCall("TimeoutError: x"), "TimeoutError: x"),
        ({"new_instruction": None}, "NoneType"),
        ({"new_instruction": ["Answer {name}."]}, "list"),
        ({"new_instruction": "  "}, "empty"),
        ({"new_instruction": PARENT}, "would not change"),
        ({"new_instruction": "Answer the firm."}, "{name}"),
        ({"new_instruction": "Answer {name}." + " More." * 9_000}, "8,000"),
    ],
)
def test_an_answer_that_cannot_stand_is_refused_with_its_reason(make: Any, answer: Any, reason: str) -> None:
    result, _ = rewrite(make, answer)
    assert isinstance(result, Refusal)
    assert reason in result.reason


def test_guards_bound_the_text_and_keep_their_rules(make: Any) -> None:
    guards = Guards(max_tokens=20)
    result, asked = rewrite(make, {"new_instruction": "Answer {name}." + " Then round." * 9}, guards=guards)
    assert isinstance(result, Refusal)
    assert asked[0][1]["most_words"] == 15
    result, _ = rewrite(make, {"new_instruction": "Answer {name}."}, guards=Guards(keep=["Give a unit."]))
    assert isinstance(result, Refusal)
    assert "Give a unit." in result.reason


def test_without_lessons_nothing_is_asked(make: Any) -> None:
    result, asked = rewrite(make, {}, lessons=make.lessons("  "))
    assert result == Refusal("there are no lessons to work in")
    assert asked == []


def test_an_instruction_that_the_aggregator_wrote_is_the_edit(make: Any) -> None:
    result, asked = rewrite(make, {}, lessons=Lessons("route", rewrite=" Answer {name} better. "))
    assert result == Edit(instruction="Answer {name} better.")
    assert asked == []


def test_more_lessons_than_one_call_takes_are_left_out_and_said(make: Any) -> None:
    many = Lessons(
        "route", lessons=tuple(Lesson(f"{number} " + f"word{number} " * 1_000, (number,)) for number in range(40))
    )
    context, asked = make.context({"new_instruction": "Answer {name}."})
    events: list[Event] = []
    context = replace(context, emit=events.append)
    assert isinstance(Rewrite().apply(make.given(instruction=PARENT, lessons=many), context), Edit)
    shown = len(asked[0][1]["lessons"])
    assert 0 < shown < 40
    (event,) = events
    assert isinstance(event, ErrorRaised)
    assert f"{40 - shown} are left out" in event.error


def test_a_budget_of_nothing_is_an_error(make: Any) -> None:
    with pytest.raises(ArgumentValueError, match="max_tokens"):
        rewrite(make, {}, operator=Rewrite(max_tokens=0))


@pytest.mark.parametrize("check", checks_for(Rewrite()), ids=lambda check: check.__name__)
def test_it_keeps_the_contract(check: Any) -> None:
    check(registry.build("operator", "rewrite", {"max_tokens": 500}))


QUESTIONS = tuple(
    SimulatedQuestion(
        text=f"Firm {number} holds {number + 3} crates at ${number * 7 + 5} each; what is it worth?",
        target=f"{number * 10 + 1}.5",
        wrong=f"-{number + 1}",
        key=f"F{number:02d}",
        lesson=f"multiply before you round, case F{number:02d}.",
    )
    for number in range(40)
)
TASK = SimulatedTask(QUESTIONS, base_rate=0.0)


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()])
@pytest.mark.parametrize(("new", "kept"), [(5, 5), (30, 12)])
def test_the_simulated_model_keeps_what_it_has_and_attends_to_so_many_lessons(
    make: Any, monkeypatch: pytest.MonkeyPatch, adapter: dspy.Adapter, new: int, kept: int
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    lines = list(TASK.lessons.values())
    parent = "Answer.\n\nLessons learned:\n- " + "\n- ".join(lines[:8])
    given = make.given(instruction=parent, lessons=make.lessons(*lines[8 : 8 + new]))
    config = SimulatedConfig(time_scale=0.0, capacity=CapacityModel(12, None))

    def predict(signature: Any, inputs: Any, *, role: str = "proposer") -> list[Any]:
        return [dspy.Predict(signature)(**values) for values in inputs]

    with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm(cache=False), adapter=adapter):
        result = Rewrite().apply(given, replace(make.context()[0], predict=predict))
    assert isinstance(result, Edit)
    text = result.instruction or ""
    assert text.startswith("Answer.")
    assert all(line in text for line in lines[:8])
    assert sum(line in text for line in lines[8:]) == kept
