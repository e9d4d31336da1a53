from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.operators import Delete, LineEvidence, Operator, Reorder
from combee_dspy.records import Edit, FailedCall, PredictorRun, Refusal

PARENT = "Answer.\n\nLessons learned:\n- Give a unit.\n- Round late.\n- Be kind.\n- Use percent."


def run(number: int, score: float, size: int = 1) -> PredictorRun:
    return PredictorRun(f"{number:064x}", {"question": f"q{number} " * size}, {"formula": "roi"}, score)


RUNS = tuple(run(number, number % 2) for number in range(6))


def drop(make: Any, answer: Any, parent: str = PARENT, **changes: Any) -> tuple[Edit | Refusal, list[Any]]:
    context, asked = make.context({"lines_to_drop": answer})
    return Delete().apply(make.given(instruction=parent, runs=RUNS, **changes), context), asked


def order(make: Any, answer: Any, parent: str = PARENT, **changes: Any) -> Edit | Refusal:
    context, _ = make.context({"new_order": answer})
    return Reorder().apply(make.given(instruction=parent, runs=RUNS, **changes), context)


def test_named_lines_go_and_the_rest_stays(make: Any) -> None:
    result, asked = drop(make, [3, 1])
    assert result == Edit(instruction="Answer.\n\nLessons learned:\n- Round late.\n- Use percent.")
    assert asked[0][1]["lines"] == ["1. Give a unit.", "2. Round late.", "3. Be kind.", "4. Use percent."]
    assert asked[0][2] == "proposer"


@pytest.mark.parametrize(
    "answer",
    [[0], [5], [-1], [1, 99], ["1"], [1.0], [True], "1", None, {"1": 1}, [[1]], [1, 2, 3], [10**30]],
)
def test_an_answer_that_is_no_list_of_lines_is_refused_whole(make: Any, answer: Any) -> None:
    assert isinstance(drop(make, answer)[0], Refusal)


def test_no_named_line_is_refused(make: Any) -> None:
    assert drop(make, [])[0] == Refusal("no line was named that should go")


def test_protected_lines_and_placeholders_are_not_offered(make: Any) -> None:
    parent = PARENT + "\n- Fill {name} in."
    guards = Guards(keep=["Be kind."])
    result, asked = drop(make, [3], parent, guards=guards, seed_instruction="Answer {name}.")
    assert asked[0][1]["lines"] == ["1. Give a unit.", "2. Round late.", "3. Use percent."]
    assert isinstance(result, Edit)
    assert result.instruction == parent.replace("\n- Use percent.", "")


def test_an_instruction_without_lessons_loses_its_own_lines_but_not_the_last(make: Any) -> None:
    result, _ = drop(make, [2], "Answer.\n\nBe kind.\nGive a unit.")
    assert result == Edit(instruction="Answer.\n\nGive a unit.")
    assert drop(make, [1], "Answer.")[0] == Refusal("the instruction has no line that could go")


def test_without_rollouts_nobody_is_asked(make: Any) -> None:
    context, asked = make.context()
    result = Delete().apply(make.given(instruction=PARENT), context)
    assert result == Refusal("there is no rollout to judge the lines by")
    assert asked == []


def test_evidence_decides_without_a_call(make: Any) -> None:
    context, asked = make.context()
    evidence = {
        "Give a unit.": LineEvidence(helped=2, harmed=1, seen=30),
        "Round late.": LineEvidence(helped=1, harmed=3, seen=30),
        "Be kind.": LineEvidence(helped=0, harmed=0, seen=20),
        "Use percent.": LineEvidence(helped=0, harmed=0, seen=19),
    }
    result = Delete().apply(make.given(instruction=PARENT, evidence=evidence), context)
    assert result == Edit(instruction="Answer.\n\nLessons learned:\n- Give a unit.\n- Use percent.")
    assert asked == []


def test_evidence_never_drops_a_protected_line(make: Any) -> None:
    evidence = {line: LineEvidence(0, 9, 30) for line in ("Give a unit.", "Round late.", "Be kind.", "Use percent.")}
    guards = Guards(keep=["Be kind.", "Round late."])
    result = Delete(max_share=1.0).apply(
        make.given(instruction=PARENT, evidence=evidence, guards=guards), make.context()[0]
    )
    assert result == Edit(instruction="Answer.\n\nLessons learned:\n- Round late.\n- Be kind.")


def test_evidence_that_clears_every_line_saves_the_call(make: Any) -> None:
    evidence = {line: LineEvidence(1, 0, 30) for line in ("Give a unit.", "Round late.", "Be kind.", "Use percent.")}
    context, asked = make.context()
    assert isinstance(Delete().apply(make.given(instruction=PARENT, evidence=evidence), context), Refusal)
    assert asked == []


def test_however_long_the_trajectories_the_prompt_is_not(make: Any) -> None:
    context, asked = make.context({"lines_to_drop": [1]})
    runs = tuple(run(number, number % 2, size=50_000) for number in range(40))
    Delete(max_tokens=1_000).apply(make.given(instruction=PARENT, runs=runs), context)
    shown = asked[0][1]["examples_with_scores"]
    assert len(repr(shown)) < 5_000
    assert {record["Score"] for record in shown} == {"0", "1"}


def test_the_order_that_is_named_is_the_order(make: Any) -> None:
    expected = "Answer.\n\nLessons learned:\n- Use percent.\n- Give a unit.\n- Be kind.\n- Round late."
    assert order(make, [4, 1, 3, 2]) == Edit(instruction=expected)


@pytest.mark.parametrize(
    "answer",
    [[1, 2, 3], [1, 2, 3, 3], [1, 2, 3, 4, 4], [0, 1, 2, 3], [2, 3, 4, 5], ["4", 3, 2, 1], "4 3 2 1", None, []],
)
def test_what_is_no_permutation_is_refused(make: Any, answer: Any) -> None:
    assert isinstance(order(make, answer), Refusal)


def test_the_same_order_is_refused(make: Any) -> None:
    assert order(make, [1, 2, 3, 4]) == Refusal("the order would not change")


def test_evidence_for_every_lesson_orders_them_without_a_call(make: Any) -> None:
    gains = {"Give a unit.": 0, "Round late.": 2, "Be kind.": 0, "Use percent.": 5}
    evidence = {line: LineEvidence(helped, 0, 30) for line, helped in gains.items()}
    context, asked = make.context()
    result = Reorder().apply(make.given(instruction=PARENT, evidence=evidence), context)
    assert result == Edit(
        instruction="Answer.\n\nLessons learned:\n- Use percent.\n- Round late.\n- Give a unit.\n- Be kind."
    )
    assert asked == []


def test_one_lesson_has_no_order(make: Any) -> None:
    assert isinstance(order(make, [1], "Answer.\n\nLessons learned:\n- Give a unit."), Refusal)


@pytest.mark.parametrize("operator", [Delete(), Reorder()])
def test_a_failed_call_is_a_refusal_with_its_reason(make: Any, operator: Operator) -> None:
    context, _ = make.context(FailedCall("TimeoutError: late"))
    result = operator.apply(make.given(instruction=PARENT, runs=RUNS), context)
    assert result == Refusal("the call failed: TimeoutError: late")


@pytest.mark.parametrize("operator", [Delete(), Reorder()])
def test_notes_reach_the_prompt_as_constraints(make: Any, operator: Operator) -> None:
    context, asked = make.context(FailedCall("x"), FailedCall("x"))
    given = make.given(instruction=PARENT, runs=RUNS)
    operator.apply(given, replace(context, notes="At most 90 tokens."))
    operator.apply(given, context)
    assert asked[0][1]["constraints"] == "At most 90 tokens."
    assert "constraints" not in asked[1][1]


@pytest.mark.parametrize(
    "operator", [Delete(max_share=0), Delete(max_share=1.5), Delete(min_seen=0), Delete(max_tokens=0), Reorder(0)]
)
def test_parameters_out_of_range_are_errors(operator: Operator) -> None:
    with pytest.raises(ArgumentValueError):
        operator.validate()
