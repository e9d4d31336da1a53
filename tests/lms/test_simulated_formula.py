"""Knowledge built from benchmark rows and examples."""

from __future__ import annotations

import json
from pathlib import Path

import dspy
import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.simulated import (
    CapacityModel,
    SimulatedConfig,
    SimulatedService,
    SimulatedTask,
    formula_task,
    simulated_formula_service,
)
from combee_dspy.lms.simulated.knowledge import same_answer
from combee_dspy.lms.simulated.matching import QuestionIndex

DATA = Path(__file__).parents[3] / "shared" / "data" / "formula"


def row(name: str, formula: str, question: str, target: str) -> dict[str, str]:
    context = (
        f"Use formula {name} to answer the question. Answer with a numerical answer with 2 decimal places and with no "
        f"explanations or other text. Formula: {formula}, Explanation: as usual. Question: {question}. Answer:"
    )
    return {"context": context, "target": target}


ROWS = [
    row("Quick Ratio", "(CA - I) / CL", '"A shop has CA of $9, I of $3 and CL of $2. Quick ratio?"', "3.0"),
    row("Beta", "Cov / Var", ' "A covariance of 0.02 and a variance of 0.04 give which beta?"', "0.5"),
    row("Quick Ratio", "(CA - I) / CL", "**Mill**: CA of $5, I of $5 and CL of $1. Quick ratio?", "0.0"),
]


@pytest.fixture(autouse=True)
def _no_price_table_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def test_formulas_get_keys_in_alphabetical_order_and_their_rule_as_lesson() -> None:
    task = formula_task(ROWS)
    assert [question.key for question in task.questions] == ["F02", "F01", "F02"]
    assert task.lessons["F01"] == "[F01] Beta: compute Cov / Var and answer with the plain number."
    assert all(not same_answer(question.target, question.wrong) for question in task.questions)


@pytest.mark.parametrize("bad", [{}, {"context": "Hello?", "target": "1"}, {**ROWS[0], "target": "much"}])
def test_other_rows_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ArgumentValueError, match="records"):
        formula_task([*ROWS, bad])


def test_the_whole_context_and_the_question_alone_are_both_recognised() -> None:
    running = simulated_formula_service(ROWS, SimulatedConfig(time_scale=0.0), base_rate=1.0)
    with running as service, dspy.context(lm=service.lm()):
        predict = dspy.Predict("question -> answer")
        assert [predict(question=item["context"]).answer for item in ROWS] == ["3.0", "0.5", "0.0"]
        alone = ROWS[1]["context"].partition("Question: ")[2].removesuffix(". Answer:")
        assert predict(question=alone).answer == "0.5"


def test_examples_become_knowledge_with_wrong_answers_of_their_kind() -> None:
    examples = [
        dspy.Example(text=f"Which drawer holds item number {number}?", drawer=drawer, kind=f"drawer rule {drawer}")
        for number, drawer in enumerate(("left", "right", "middle") * 4)
    ]
    task = SimulatedTask.from_examples(examples, "text", "drawer", key_of=lambda example: example["kind"])
    assert task.answer_fields == ("drawer",)
    assert {question.key for question in task.questions} == {
        "drawer-rule-left",
        "drawer-rule-right",
        "drawer-rule-middle",
    }
    assert {question.wrong for question in task.questions} == {"left", "right", "middle"}
    with pytest.raises(ArgumentValueError, match="answer"):
        SimulatedTask.from_examples(examples, "text", "answer", key_of=lambda example: "k")


def test_a_task_from_examples_is_learned_through_its_own_field() -> None:
    examples = [
        dspy.Example(text=f"Which drawer holds item number {n}?", drawer="left", kind=f"K{n}") for n in range(4)
    ]
    task = SimulatedTask.from_examples(
        examples, "text", "drawer", key_of=lambda example: example["kind"], base_rate=0.0
    )
    with SimulatedService(SimulatedConfig(time_scale=0.0), task) as service, dspy.context(lm=service.lm()):
        plain = dspy.Predict("text -> drawer")
        taught = dspy.Predict(dspy.Signature("text -> drawer", task.lessons["K2"]))
        assert [plain(text=item.text).drawer for item in examples] == ["not left"] * 4
        assert taught(text=examples[2].text).drawer == "left"


@pytest.fixture(scope="module")
def formula_rows() -> list[dict[str, str]]:
    if not DATA.is_dir():
        pytest.skip(f"Formula's rows are not in {DATA}")
    files = [DATA / f"{split}.jsonl" for split in ("train", "validation", "test")]
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def test_every_row_of_formula_is_told_apart(formula_rows: list[dict[str, str]]) -> None:
    task = formula_task(formula_rows)
    assert len(task.lessons) == 50
    index = QuestionIndex([question.text for question in task.questions], task.lessons)
    for number, item in enumerate(formula_rows):
        assert [hit.question for hit in index.scan(json.dumps(item["context"])).hits] == [number]
    everything = json.dumps([json.dumps({"Inputs": item}) for item in formula_rows])
    assert [hit.question for hit in index.scan(everything).hits] == list(range(len(formula_rows)))


def test_one_call_over_all_of_formula_keeps_what_its_capacity_allows(formula_rows: list[dict[str, str]]) -> None:
    with (
        simulated_formula_service(
            formula_rows, SimulatedConfig(time_scale=0.0, capacity=CapacityModel.attention(12))
        ) as service,
        dspy.context(lm=service.lm()),
    ):
        contexts = [item["context"] for item in formula_rows[:500]]
        lessons = dspy.Predict("records: list[str] -> lessons: list[str]")(records=contexts).lessons
    kept = [line for line in lessons if line.startswith("[F")]
    assert 6 <= len(kept) <= 12
    assert len(kept) == len(set(kept))
