"""Knowledge built from benchmark rows and examples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy import load_benchmark
from combee_dspy.exceptions import ArgumentValueError
from combee_simulator import (
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
    benchmark_task,
    finer_task,
    formula_task,
)
from combee_simulator.knowledge import same_answer
from combee_simulator.mistakes import mistake_of, wrong_number


def row(name: str, formula: str, question: str, target: str) -> dict[str, str]:
    context = (
        f"Use formula {name} to answer the question. Answer with a numerical answer with 2 decimal"
        f" places and with no explanations or other text. Formula: {formula}, Explanation: as"
        f" usual. Question: {question}. Answer:"
    )
    return {"context": context, "target": target}


ROWS = [
    row(
        "Quick Ratio",
        "(CA - I) / CL",
        '"A shop has CA of $9, I of $3 and CL of $2. Quick ratio?"',
        "3.0",
    ),
    row(
        "Beta",
        "Cov / Var",
        ' "A covariance of 0.02 and a variance of 0.04 give which beta?"',
        "0.5",
    ),
    row(
        "Quick Ratio",
        "(CA - I) / CL",
        "**Mill**: CA of $5, I of $5 and CL of $1. Quick ratio?",
        "0.0",
    ),
]


def test_formulas_get_keys_in_alphabetical_order_and_their_rule_as_lesson() -> None:
    task = formula_task(ROWS)
    assert [question.key for question in task.questions] == ["F02", "F01", "F02"]
    assert task.lessons["F01"] == "[F01] Beta: compute Cov / Var and answer with the plain number."
    assert all(not same_answer(question.target, question.wrong) for question in task.questions)


@pytest.mark.parametrize(
    "bad", [{}, {"context": "Hello?", "target": "1"}, {**ROWS[0], "target": "much"}]
)
def test_other_rows_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ArgumentValueError, match="records"):
        formula_task([*ROWS, bad])


def test_the_whole_context_and_the_question_alone_are_both_recognised() -> None:
    running = SimulatedService(SimulatedConfig(time_scale=0.0), formula_task(ROWS, base_rate=1.0))
    with running as service, dspy.context(lm=service.lm()):
        predict = dspy.Predict("question -> answer")
        assert [predict(question=item["context"]).answer for item in ROWS] == ["3.0", "0.5", "0.0"]
        alone = ROWS[1]["context"].partition("Question: ")[2].removesuffix(". Answer:")
        assert predict(question=alone).answer == "0.5"


def test_examples_become_knowledge_with_wrong_answers_of_their_kind() -> None:
    examples = [
        dspy.Example(
            text=f"Which drawer holds item number {number}?",
            drawer=drawer,
            kind=f"drawer rule {drawer}",
        )
        for number, drawer in enumerate(("left", "right", "middle") * 4)
    ]
    task = SimulatedTask.from_examples(
        examples, "text", "drawer", key_of=lambda example: example["kind"]
    )
    assert task.answer_fields == ("drawer",)
    assert {question.key for question in task.questions} == {
        "drawer-rule-left",
        "drawer-rule-right",
        "drawer-rule-middle",
    }
    assert {question.wrong for question in task.questions} == {"left", "right", "middle"}


def test_a_task_from_examples_is_learned_through_its_own_field() -> None:
    examples = [
        dspy.Example(text=f"Which drawer holds item number {n}?", drawer="left", kind=f"K{n}")
        for n in range(4)
    ]
    task = SimulatedTask.from_examples(
        examples, "text", "drawer", key_of=lambda example: example["kind"], base_rate=0.0
    )
    with (
        SimulatedService(SimulatedConfig(time_scale=0.0), task) as service,
        dspy.context(lm=service.lm()),
    ):
        plain = dspy.Predict("text -> drawer")
        taught = dspy.Predict(dspy.Signature("text -> drawer", task.lessons["K2"]))
        assert [plain(text=item.text).drawer for item in examples] == ["not left"] * 4
        assert taught(text=examples[2].text).drawer == "left"


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
    [
        ("0.25", "25", "scale"),
        ("1,000", "-1000", "sign"),
        ("3", "4", "rounding"),
        ("3", "5", None),
        ("tax", "4", None),
    ],
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
    assert [one.key for one in finer.questions] == [
        "F01.scale",
        "F02.rounding",
        "F03.sign",
        "F01.sign",
    ]
    assert all(one.lesson.startswith(f"Ratio {one.key[2]}: ") for one in finer.questions)
    assert len(finer.lessons) == len(set(finer.lessons.values())) == 4
    assert [(one.text, one.target, one.wrong) for one in finer.questions] == [
        (one.text, one.target, one.wrong) for one in task.questions
    ]
    assert (finer.base_rate, finer.taught_rate, finer.joiner) == (0.1, 0.9, ",")


def test_lessons_by_mistake_need_usual_mistakes() -> None:
    with pytest.raises(ArgumentValueError, match="usual mistake"):
        SimulatedTask((question(1, "red", "blue"),)).by_mistake()


SMALL = {"formulas": 4, "train": 8, "validation": 4, "heldout": 4}


@pytest.mark.parametrize("task", ["compute", "route"])
def test_formula_mini_is_known_by_its_formulas(task: str) -> None:
    benchmark = load_benchmark("formula-mini", task=task, **SMALL)
    rows = [row for split in benchmark.splits for row in split.examples]
    known = benchmark_task(benchmark)
    assert [question.text for question in known.questions] == [row.question for row in rows]
    assert [question.target for question in known.questions] == [
        str(row[known.answer_fields[0]]) for row in rows
    ]
    assert known.answer_fields == tuple(benchmark.signature.output_fields)
    assert len(known.lessons) == len({row.formula for row in rows}) > 1
    assert benchmark_task(benchmark, 0) == known


@pytest.fixture
def formula_rows(tmp_path: Path) -> list[dict[str, str]]:
    """Rows in the form of the Formula benchmark, written to files."""
    found = []
    for split, start in (("train", 0), ("validation", 10), ("test", 20)):
        rows = [
            {
                "context": (
                    f"Use formula {name} to answer the question. Formula: {name} = a / b,"
                    " Explanation: a by b. "
                    f'Question: "With {start + number} cases, what is the figure of firm'
                    f' X{start + number}?". Answer:'
                ),
                "target": f"{start + number}.5",
            }
            for number, name in enumerate(("Quick Ratio", "Gross Margin"))
        ]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        found += rows
    return found


@pytest.mark.parametrize("formula_text", [False, True])
def test_formula_is_known_by_its_formulas_though_examples_hide_them(
    formula_rows: list[dict[str, str]], tmp_path: Path, formula_text: bool
) -> None:
    params = {"path": str(tmp_path), "formula_text": formula_text}
    known = benchmark_task(load_benchmark("formula", **params), 3, params=params)
    assert known == formula_task(formula_rows, seed=3)
    assert len(known.lessons) == 2


def test_formula_without_its_parameters_is_refused(
    formula_rows: list[dict[str, str]], tmp_path: Path
) -> None:
    assert formula_rows
    with pytest.raises(ArgumentValueError, match="params"):
        benchmark_task(load_benchmark("formula", path=str(tmp_path)))


TAGS = ["InterestExpense", "Goodwill", "Depreciation", "Revenues"]


def finer_record(start: int, tags: list[str]) -> dict[str, str]:
    asked = [
        f'{n}. entity "{start + n}.5" in sentence: "In {start} the amount number {n} was'
        f' {start + n}.5 million"'
        for n in range(1, len(tags) + 1)
    ]
    return {"questions": "\n".join(asked), "tags": ",".join(tags)}


ASKED, TAUGHT = finer_record(100, TAGS), finer_record(300, TAGS)


@pytest.fixture(scope="module")
def tags() -> Any:
    with SimulatedService(
        SimulatedConfig(time_scale=0.0), finer_task([ASKED, TAUGHT], base_rate=0.0)
    ) as service:
        lm = service.lm()

        def call(instruction: str = "Tag.", demos: tuple[dspy.Example, ...] = ()) -> list[bool]:
            program = dspy.Predict(dspy.Signature("questions -> tags", instruction))
            program.demos = list(demos)
            with dspy.context(lm=lm):
                said = program(questions=ASKED["questions"]).tags
            return [one == other for one, other in zip(said.split(","), TAGS, strict=True)]

        yield call


def test_every_tag_of_a_record_has_a_lesson_of_its_own(tags: Any) -> None:
    assert tags() == [False] * 4
    assert tags(f"Tag.\n- [{TAGS[2]}] such numbers.") == [False, False, True, False]
    half = dspy.Example(questions=TAUGHT["questions"], tags=f"{TAGS[0]},x,y,{TAGS[3]}").with_inputs(
        "questions"
    )
    assert tags(demos=(half,)) == [True, False, False, True]
    assert tags(f"Tag.\nExample:\n{TAUGHT['questions']}\nTags: {TAUGHT['tags']}") == [True] * 4
    with pytest.raises(ArgumentValueError, match="FiNER"):
        finer_task([{"context": "Hello", "target": "x"}])
