import enum
from collections import Counter
from typing import Any

import dspy
import pydantic
import pytest

from combee_dspy.operators import FewShotSwap, encode_demonstrations
from combee_dspy.records import Demonstration, Edit, PredictorRun, Refusal


def run(number, label="roi", score=1.0, **changes):
    values = {
        "example_id": f"id {number}",
        "inputs": {"question": f"question {number}"},
        "outputs": {"formula": label},
        "score": score,
        **changes,
    }
    return PredictorRun(**values)


def demo(number, label="roi"):
    return Demonstration({"question": f"question {number}"}, {"formula": label}, f"id {number}")


def labels(edit):
    assert isinstance(edit, Edit)
    return Counter(demonstration.outputs["formula"] for demonstration in edit.demonstrations)


def test_successes_become_demonstrations_without_a_call(bench):
    edit = bench.apply(FewShotSwap(), runs=(run(0), run(1, score=0.5), run(2)))
    assert edit.instruction is None
    assert {d.example_id for d in edit.demonstrations} == {"id 0", "id 2"}
    assert bench.calls == []


def test_without_a_success_it_refuses(bench):
    result = bench.apply(FewShotSwap(), runs=(run(0, score=0.9),))
    assert result == Refusal(
        "no rollout of the minibatch reached a score of 1 through this predictor"
    )
    assert isinstance(bench.apply(FewShotSwap(min_score=0.9), runs=(run(0, score=0.9),)), Edit)


def test_the_runs_own_perfect_score_counts(bench):
    edit = bench.apply(
        FewShotSwap(), runs=(run(0, score=5.0), run(1, score=3.0)), perfect_score=5.0
    )
    assert [d.example_id for d in edit.demonstrations] == ["id 0"]


def test_rare_labels_come_first(bench):
    runs = (*(run(i, "roi") for i in range(20)), run(20, "npv"), run(21, "irr"))
    for seed in range(10):
        edit = bench.apply(FewShotSwap(max_demonstrations=4), runs=runs, seed=seed)
        assert labels(edit) == {"roi": 2, "npv": 1, "irr": 1}


def test_present_demonstrations_stay_while_there_is_room(bench):
    present = (demo(0), demo(1))
    edit = bench.apply(
        FewShotSwap(max_demonstrations=3), demonstrations=present, runs=(run(5), run(6))
    )
    assert edit.demonstrations[:2] == present
    assert len(edit.demonstrations) == 3


def test_a_full_list_swaps_a_quarter_and_keeps_its_balance(bench):
    present = tuple(demo(i, label) for i, label in enumerate(["roi", "npv", "irr", "roi"] * 2))
    runs = tuple(run(100 + i, label) for i, label in enumerate(["roi", "npv", "irr"] * 5))
    edit = bench.apply(FewShotSwap(max_demonstrations=8), demonstrations=present, runs=runs)
    assert sum(new != old for new, old in zip(edit.demonstrations, present, strict=True)) == 2
    assert set(labels(edit)) == {"roi", "npv", "irr"}
    assert set(labels(edit).values()) <= {2, 3, 4}


def test_a_full_list_makes_room_for_a_new_label(bench):
    present = tuple(demo(i, "roi") for i in range(4))
    for seed in range(5):
        edit = bench.apply(
            FewShotSwap(max_demonstrations=4),
            demonstrations=present,
            runs=(run(9, "npv"),),
            seed=seed,
        )
        assert labels(edit) == {"roi": 3, "npv": 1}


def test_a_list_longer_than_the_maximum_is_shortened(bench):
    present = tuple(demo(i) for i in range(6))
    edit = bench.apply(FewShotSwap(max_demonstrations=4), demonstrations=present, runs=(run(9),))
    assert len(edit.demonstrations) == 4


def test_one_question_is_shown_once(bench):
    runs = (run(0), run(0), run(3, inputs={"question": "question 0"}), run(1, first=False), run(7))
    edit = bench.apply(FewShotSwap(), demonstrations=(demo(7),), runs=runs)
    assert [d.inputs["question"] for d in edit.demonstrations] == ["question 7", "question 0"]
    again = bench.apply(FewShotSwap(), demonstrations=edit.demonstrations, runs=runs)
    assert again == Refusal("every success of the minibatch is a demonstration already")


class Kind(enum.Enum):
    GOOD = "good"


class Row(pydantic.BaseModel):
    kind: Kind
    pair: tuple[int, int]


def test_models_and_enumerations_become_json(bench):
    inputs = {"question": "q", "row": Row(kind=Kind.GOOD, pair=(1, 2)), "unknown": object()}
    edit = bench.apply(
        FewShotSwap(),
        signature=dspy.Signature("question: str, row -> reasoning: str, formula"),
        runs=(run(0, inputs=inputs, outputs={"reasoning": "r", "formula": Kind.GOOD}),),
    )
    (demonstration,) = edit.demonstrations
    assert demonstration.inputs == {"question": "q", "row": {"kind": "good", "pair": [1, 2]}}
    assert demonstration.outputs == {"reasoning": "r", "formula": "good"}
    assert encode_demonstrations([demonstration])


LOOP: list[Any] = []
LOOP.append(LOOP)
IMAGE = dspy.Image("https://example.org/a.png")


@pytest.mark.parametrize(
    "value", [IMAGE, [IMAGE], dspy.History(messages=[]), object(), float("nan"), None, LOOP]
)
def test_what_is_no_json_is_skipped_with_the_reason(bench, value):
    runs = (run(0, inputs={"question": value}),)
    result = bench.apply(FewShotSwap(), runs=runs)
    assert isinstance(result, Refusal) and "'question'" in result.reason
    assert labels(bench.apply(FewShotSwap(), runs=(*runs, run(1)))) == {"roi": 1}


def test_the_token_budget_holds(bench):
    operator = FewShotSwap(max_tokens=500)
    runs = tuple(run(i, inputs={"question": f"{i} " + "word " * 100}) for i in range(10))
    edit = bench.apply(operator, runs=runs)
    assert labels(edit) == {"roi": 3}
    assert isinstance(bench.apply(operator, runs=runs, demonstrations=edit.demonstrations), Edit)
    huge = bench.apply(operator, runs=(run(0, inputs={"question": "word " * 10_000}),))
    assert isinstance(huge, Refusal) and "tokens" in huge.reason


def test_labels_stand_in_where_successes_are_too_few(bench):
    runs = tuple(
        run(number, "irr", score=float(gold == "irr" and number == 0), labels={"formula": gold})
        for number, gold in enumerate(["irr", "irr", "npv", "npv", "roi", "roi"])
    )
    edit = bench.apply(FewShotSwap(max_demonstrations=3, labelled=True), runs=runs)
    assert labels(edit) == {"irr": 1, "npv": 1, "roi": 1}
    assert "id 0" in {demo.example_id for demo in edit.demonstrations}, (
        "the success comes before the labels"
    )
    assert labels(bench.apply(FewShotSwap(labelled=True), runs=runs)) == {
        "irr": 2,
        "npv": 2,
        "roi": 2,
    }
    assert labels(bench.apply(FewShotSwap(max_demonstrations=3), runs=runs)) == {"irr": 1}


def test_labels_that_do_not_name_every_output_are_no_demonstration(bench):
    signature = dspy.Signature("question -> reasoning, label")
    runs = (
        PredictorRun(
            "row", {"question": "q"}, {"reasoning": "r", "label": "x"}, 0.0, labels={"label": "a"}
        ),
    )
    refused = bench.apply(FewShotSwap(labelled=True), signature=signature, runs=runs)
    assert isinstance(refused, Refusal)
    assert refused.reason.startswith("no rollout of the minibatch reached a score of 1")
