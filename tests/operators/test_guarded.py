"""No operator returns an edit that breaks what its input's guards protect, whatever the LM answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from combee_dspy.guards import CopyIndex, GuardInput, Guards, check
from combee_dspy.operators import Delete, FewShotSwap, Insert, InstructionChannel, Operator, Reorder, Rephrase
from combee_dspy.operators._examples import WorkedExample
from combee_dspy.records import Edit, Lesson, Lessons, PredictorRun, Refusal
from combee_dspy.reflections import estimate_tokens
from combee_dspy.testing import ScriptedPredict

RULE = "Never name a customer."
SEED = f"Route {{ticket}} in <reply>.\n{RULE}\nQuestion: How much came back?\nFormula: roi"
PARENT = f"{SEED}\n\nLessons learned:\n- Give a unit.\n- {RULE} Ever.\n- Write formula in lower case."
GUARDS = Guards(max_tokens=90, keep=[RULE])
OPERATORS: tuple[Operator, ...] = (
    Insert(max_tokens=60),
    Delete(),
    Rephrase(),
    Reorder(),
    FewShotSwap(),
    InstructionChannel(),
)
LEAK = "Acme Holdings of Leeds asked on the third of May how much of its bridge loan had come back by June"


class Scripted(ScriptedPredict):
    """A double that says what it is told instead of what it would fabricate."""

    def __init__(self, says: Mapping[str, Any]) -> None:
        super().__init__()
        self._says = says

    def __call__(self, signature: Any, inputs: Sequence[dict[str, Any]], *, role: Any = "proposer") -> list[Any]:
        answers = super().__call__(signature, inputs, role=role)
        for answer in answers:
            for name in answer.keys() & self._says.keys():
                answer[name] = self._says[name]
        return answers


def parent(make: Any, **changes: Any) -> Any:
    runs = tuple(
        PredictorRun(f"{number:064x}", {"question": f"q{number}"}, {"formula": "roi"}, number % 2)
        for number in range(5)
    )
    values = {
        "instruction": PARENT,
        "runs": runs,
        "guards": GUARDS,
        "seed_instruction": SEED,
        "lessons": Lessons("route", (Lesson("Look twice. " * 9), Lesson("Use percent."))),
        **changes,
    }
    return make.given(**values)


BREAKERS: tuple[dict[str, Any], ...] = (
    {"reworded_passages": ["Route tickets.", "Give a unit.", "Write formula in lower case."]},
    {"reworded_passages": [SEED.replace(RULE, "Be discreet."), "Give a unit.", "Write formula in lower case."]},
    {"reworded_passages": [SEED.replace("{ticket}", "it"), "Give a unit.", "Write formula in lower case."]},
    {"reworded_passages": [SEED + " please" * 40, "Give a unit.", "Write formula in lower case."]},
    {"lines_to_drop": [1, 2]},
    {"lines_to_drop": [3]},
    {"new_order": [3, 2]},
    {"destinations": ["password", "formula"]},
    {"worked_examples": [WorkedExample(first_line=1, last_line=4, inputs={}, outputs={})]},
    {
        "worked_examples": [
            WorkedExample(
                first_line=2, last_line=4, inputs={"question": "How much came back?"}, outputs={"formula": "roi"}
            )
        ]
    },
    {"shorter_lessons": ["Use percent. " * 60]},
    {"shorter_lessons": []},
)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.name)
@pytest.mark.parametrize("says", BREAKERS)
def test_nothing_that_breaks_a_guard_comes_out(make: Any, operator: Operator, says: dict[str, Any]) -> None:
    for place in range(4):
        context = replace(make.context()[0], predict=Scripted(says), place=str(place))
        material = parent(make)
        result = operator.apply(material, context)
        if isinstance(result, Edit):
            judged = GuardInput("route", PARENT, result, SEED, signature=make.Route)
            assert check(GUARDS, judged) is None
            assert RULE in (result.instruction or PARENT)
        else:
            assert result.reason


TEXTS = st.text(max_size=30) | st.sampled_from(["instruction", "formula", RULE, SEED, "- x\nLessons learned:\n- y"])
NUMBERS = st.integers(-1, 6)


@given(
    says=st.fixed_dictionaries(
        {
            "reworded_passages": st.lists(TEXTS, max_size=4),
            "lines_to_drop": st.lists(NUMBERS, max_size=3),
            "new_order": st.permutations([1, 2, 3]) | st.lists(NUMBERS, max_size=4),
            "destinations": st.lists(TEXTS, min_size=2, max_size=2),
            "shorter_lessons": st.lists(TEXTS, max_size=4),
        }
    ),
    number=st.integers(0, len(OPERATORS) - 1),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nor_does_it_whatever_is_answered(make: Any, says: dict[str, Any], number: int) -> None:
    context = replace(make.context()[0], predict=Scripted(says))
    result = OPERATORS[number].apply(parent(make), context)
    if isinstance(result, Edit):
        judged = GuardInput("route", PARENT, result, SEED, signature=make.Route)
        assert check(GUARDS, judged) is None


def test_an_example_copied_into_a_lesson_is_refused_by_the_engines_check(make: Any) -> None:
    copies = CopyIndex.build([dspy.Example(question=LEAK, formula="roi").with_inputs("question")])
    lessons = Lessons("route", (Lesson(f"When {LEAK}, answer roi."),))
    edit = Insert().apply(make.given(instruction=SEED, lessons=lessons), make.context()[0])
    assert isinstance(edit, Edit)
    found = check(Guards(), GuardInput("route", SEED, edit, SEED, signature=make.Route), copies)
    assert isinstance(found, Refusal)
    assert "copies" in found.reason


@pytest.mark.parametrize("rewrite", ["Route it.", SEED.replace(RULE, ""), SEED + " more" * 90])
def test_a_rewrite_that_breaks_a_guard_is_refused(make: Any, rewrite: str) -> None:
    result = Insert().apply(parent(make, lessons=Lessons("route", rewrite=rewrite)), make.context()[0])
    assert isinstance(result, Refusal)


def test_insert_condenses_into_the_room_that_the_guards_leave(make: Any) -> None:
    context, asked = make.context({"shorter_lessons": ["Use percent."]})
    lessons = Lessons("route", tuple(Lesson(f"Lesson {number} is about a thing.") for number in range(20)))
    result = Insert().apply(parent(make, lessons=lessons), context)
    assert isinstance(result, Edit)
    assert result.instruction == f"{SEED}\n\nLessons learned:\n- {RULE} Ever.\n- Use percent."
    assert estimate_tokens(result.instruction) <= 90
    assert RULE not in "".join(asked[0][1]["lessons"])
    assert asked[0][1]["most_words"] < 60


def test_insert_says_so_where_the_guards_leave_no_room(make: Any) -> None:
    guards = Guards(max_tokens=estimate_tokens(SEED))
    context, asked = make.context()
    result = Insert().apply(parent(make, instruction=SEED, guards=guards), context)
    assert isinstance(result, Refusal)
    assert "no room" in result.reason
    assert asked == []
