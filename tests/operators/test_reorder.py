import pytest

from combee_dspy.operators import Reorder
from combee_dspy.records import Edit, FailedCall, PredictorRun, Refusal

PARENT = "Answer.\n\nLessons learned:\n- Give a unit.\n- Round late.\n- Be kind.\n- Use percent."


def run(number, score, size=1):
    return PredictorRun(
        f"{number:064x}", {"question": f"q{number} " * size}, {"formula": "roi"}, score
    )


RUNS = tuple(run(number, number % 2) for number in range(6))


def order(bench, answer, parent=PARENT):
    return bench.apply(Reorder(), {"new_order": answer}, instruction=parent, runs=RUNS)


def test_however_long_the_trajectories_the_prompt_is_not(bench):
    runs = tuple(run(number, number % 2, size=50_000) for number in range(10))
    bench.apply(Reorder(max_tokens=1_000), {"new_order": [2, 1]}, instruction=PARENT, runs=runs)
    shown = bench.calls[0][1]["examples_with_scores"]
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


def test_a_failed_call_is_a_refusal_and_notes_reach_the_prompt_as_constraints(bench):
    values = {"instruction": PARENT, "runs": RUNS}
    result = bench.apply(
        Reorder(), FailedCall("TimeoutError: late"), notes="At most 90 tokens.", **values
    )
    assert result == Refusal("the call failed: TimeoutError: late")
    bench.apply(Reorder(), FailedCall("x"), **values)
    assert bench.calls[0][1]["constraints"] == "At most 90 tokens."
    assert "constraints" not in bench.calls[1][1]
    assert bench.calls[0][0] == bench.calls[1][0]
