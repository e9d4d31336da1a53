import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.operators import Delete, Reorder
from combee_dspy.records import Edit, FailedCall, PredictorRun, Refusal

PARENT = "Answer.\n\nLessons learned:\n- Give a unit.\n- Round late.\n- Be kind.\n- Use percent."


def run(number, score, size=1):
    return PredictorRun(
        f"{number:064x}", {"question": f"q{number} " * size}, {"formula": "roi"}, score
    )


RUNS = tuple(run(number, number % 2) for number in range(6))


def drop(bench, answer, parent=PARENT, **changes):
    return bench.apply(
        Delete(), {"lines_to_drop": answer}, instruction=parent, **{"runs": RUNS, **changes}
    )


def order(bench, answer, parent=PARENT):
    return bench.apply(Reorder(), {"new_order": answer}, instruction=parent, runs=RUNS)


def test_named_lines_go_and_the_rest_stays(bench):
    result = drop(bench, [3, 1, 3])
    assert result == Edit(instruction="Answer.\n\nLessons learned:\n- Round late.\n- Use percent.")
    assert bench.asked[0][1]["lines"] == [
        "1. Give a unit.",
        "2. Round late.",
        "3. Be kind.",
        "4. Use percent.",
    ]
    assert bench.asked[0][3] == "proposer"


@pytest.mark.parametrize(
    "answer",
    [[0], [5], [-1], [1, 99], ["one"], [1.5], "1", None, {"1": 1}, [[1]], [1, 2, 3], [10**30]],
)
def test_an_answer_that_is_no_list_of_lines_is_refused_whole(bench, answer):
    assert isinstance(drop(bench, answer), Refusal)


def test_no_named_line_is_refused(bench):
    assert drop(bench, []) == Refusal("no line was named that should go")


def test_protected_lines_and_placeholders_are_not_offered(bench):
    parent = PARENT + "\n- Fill {name} in."
    guards = Guards(keep=["Be kind."])
    result = drop(bench, [3], parent, guards=guards, seed_instruction="Answer {name}.")
    assert bench.asked[0][1]["lines"] == ["1. Give a unit.", "2. Round late.", "3. Use percent."]
    assert result == Edit(instruction=parent.replace("\n- Use percent.", ""))


def test_an_instruction_without_lessons_loses_its_own_lines_but_not_the_last(bench):
    assert drop(bench, [2], "Answer.\n\nBe kind.\nGive a unit.") == Edit(
        instruction="Answer.\n\nGive a unit."
    )
    assert drop(bench, [1], "Answer.") == Refusal("the instruction has no line that could go")


def test_without_rollouts_nobody_is_asked(bench):
    assert drop(bench, [1], runs=()) == Refusal("there is no rollout to judge the lines by")
    assert bench.asked == []


def test_however_long_the_trajectories_the_prompt_is_not(bench):
    runs = tuple(run(number, number % 2, size=50_000) for number in range(10))
    bench.apply(Delete(max_tokens=1_000), {"lines_to_drop": [1]}, instruction=PARENT, runs=runs)
    shown = bench.asked[0][1]["examples_with_scores"]
    assert len(repr(shown)) < 5_000
    assert {record["Score"] for record in shown} == {"0", "1"}


def test_the_order_that_is_named_is_the_order(bench):
    expected = (
        "Answer.\n\nLessons learned:\n- Use percent.\n- Give a unit.\n- Be kind.\n- Round late."
    )
    assert order(bench, [4, 1, 3, 2]) == Edit(instruction=expected)


@pytest.mark.parametrize(
    "answer",
    [
        [1, 2, 3],
        [1, 2, 3, 3],
        [1, 2, 3, 4, 4],
        [0, 1, 2, 3],
        [2, 3, 4, 5],
        "4 3 2 1",
        None,
        [],
        [1, 2, 3, 4],
    ],
)
def test_what_is_no_other_order_is_refused(bench, answer):
    assert isinstance(order(bench, answer), Refusal)


def test_an_order_that_stands_already_changes_nothing_however_it_was_written(bench):
    result = order(
        bench, [1, 2], "Answer.\n\nLessons learned:\n-  Give a unit.\n- Round late.\n\nBe kind."
    )
    assert result == Refusal("the edit changes nothing")


def test_one_lesson_has_no_order(bench):
    assert isinstance(order(bench, [1], "Answer.\n\nLessons learned:\n- Give a unit."), Refusal)


@pytest.mark.parametrize("operator", [Delete(), Reorder()])
def test_a_failed_call_is_a_refusal_and_notes_reach_the_prompt_as_constraints(bench, operator):
    values = {"instruction": PARENT, "runs": RUNS}
    result = bench.apply(
        operator, FailedCall("TimeoutError: late"), notes="At most 90 tokens.", **values
    )
    assert result == Refusal("the call failed: TimeoutError: late")
    bench.apply(operator, FailedCall("x"), **values)
    assert bench.asked[0][1]["constraints"] == "At most 90 tokens."
    assert "constraints" not in bench.asked[1][1]
    assert bench.asked[0][0] == bench.asked[1][0]


@pytest.mark.parametrize("params", [{"max_tokens": 0}])
def test_parameters_out_of_range_are_errors(params):
    with pytest.raises(ArgumentValueError):
        Delete(**params)
