from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.operators import Rephrase
from combee_dspy.operators._facts import lost_fact
from combee_dspy.records import Edit, Refusal

PARENT = "Answer {name}.\n\nLessons learned:\n- Round to 2 digits.\n- Write `roi`, never ROI."


def reword(make: Any, *passages: Any, answer: Any = None, **changes: Any) -> Edit | Refusal:
    context, _ = make.context({"reworded_passages": list(passages) if answer is None else answer})
    values = {"instruction": PARENT, **changes}
    return Rephrase().apply(make.given(**values), context)


def test_own_text_and_lessons_are_reworded_in_their_places(make: Any) -> None:
    result = reword(make, "Give {name} an answer.", "Use 2 digits.", "The word is `roi`; do not write ROI.")
    assert result == Edit(
        instruction="Give {name} an answer.\n\nLessons learned:\n- Use 2 digits.\n"
        "- The word is `roi`; do not write ROI."
    )


@pytest.mark.parametrize(
    ("passages", "reason"),
    [
        (("Give {name} one.", "Round.", "Write `roi`, never ROI."), "lost the number 2"),
        (("Give {name} one.", "Round to 2 of 3 digits.", "Write `roi`, never ROI."), "invented the number 3"),
        (("Give one.", "Round to 2 digits.", "Write `roi`, never ROI."), "{name}"),
        (("Give {name} one.", "Round to 2 digits.", "Write heroic, never ROI."), "quoted text"),
        (("Give {name} one.", "Round to 2 digits.", "Write `roi`, not the other."), "ROI"),
        (("Give {name} one.", "Round to 2 digits."), "3 passages"),
        (("Give {name} one.", "Round to 2 digits.", " "), "empty"),
        (("Give {name} one.", "Round to 2 digits.", None), "empty"),
        (("Give {name} one." + " more" * 60, "Round to 2 digits.", "Write `roi`, never ROI."), "grew"),
    ],
)
def test_a_lost_or_invented_fact_is_refused(make: Any, passages: tuple[Any, ...], reason: str) -> None:
    result = reword(make, *passages)
    assert isinstance(result, Refusal)
    assert reason in result.reason


@pytest.mark.parametrize("answer", ["text", 3, {"a": 1}, []])
def test_an_answer_that_is_no_list_is_refused(make: Any, answer: Any) -> None:
    assert isinstance(reword(make, answer=answer), Refusal)


def test_the_same_words_are_refused(make: Any) -> None:
    assert isinstance(reword(make, "Answer {name}.", "Round to 2 digits.", "Write `roi`, never ROI."), Refusal)


def test_labels_of_the_task_stay(make: Any) -> None:
    result = reword(make, "Choose the return.", instruction="Choose npv or irr.")
    assert isinstance(result, Refusal)
    assert "'npv'" in result.reason


def test_a_protected_lesson_is_not_sent_and_a_protected_line_is_checked(make: Any) -> None:
    guards = Guards(keep=["Round to 2 digits.", "Answer {name}."])
    context, asked = make.context({"reworded_passages": ["Answer {name}. Please.", "Write ROI as `roi`."]})
    result = Rephrase().apply(make.given(instruction=PARENT, guards=guards), context)
    assert asked[0][1]["passages"] == ["Answer {name}.", "Write `roi`, never ROI."]
    assert isinstance(result, Edit)
    assert "- Round to 2 digits.\n- Write ROI as `roi`." in (result.instruction or "")
    context, _ = make.context({"reworded_passages": ["Give {name} one.", "Write ROI as `roi`."]})
    broken = Rephrase().apply(make.given(instruction=PARENT, guards=guards), context)
    assert isinstance(broken, Refusal)
    assert "protected rule" in broken.reason


def test_the_token_budget_is_kept(make: Any) -> None:
    guards = Guards(max_tokens=22)
    result = reword(
        make, "Please do answer {name} now.", "Round to 2 digits.", "Write `roi`, never ROI.", guards=guards
    )
    assert isinstance(result, Refusal)
    assert "22" in result.reason


def test_two_draws_ask_for_different_manners(make: Any) -> None:
    context, asked = make.context(*({"reworded_passages": []} for _ in range(12)))
    for number in range(12):
        Rephrase().apply(make.given(instruction=PARENT), replace(context, place=f"operator {number}"))
    assert len({values["manner"] for _, values, _ in asked}) > 2


@pytest.mark.parametrize(
    "operator", [Rephrase(max_growth=0.5), Rephrase(max_growth=float("nan")), Rephrase(manners=())]
)
def test_parameters_out_of_range_are_errors(operator: Rephrase) -> None:
    with pytest.raises(ArgumentValueError):
        operator.validate()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("roi = gain / cost", "divide gain by cost to get roi"),
        ("Use 1,000.5 units", "Use 1000.5 units"),
        ('Say "no".', "Say nothing."),
        ("Fill field_name in.", "Fill it in."),
        ("Under 5% fees.", "Under 5 fees."),
    ],
)
def test_facts_that_code_can_see(before: str, after: str) -> None:
    assert lost_fact(before, after)


@given(st.text(max_size=100))
def test_a_text_loses_nothing_to_itself(text: str) -> None:
    assert lost_fact(text, text, ("roi", "a+b")) == ""
