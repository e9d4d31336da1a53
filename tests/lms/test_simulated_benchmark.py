from __future__ import annotations

import json
import os
from pathlib import Path

import dspy
import pytest

from combee_dspy import load_benchmark
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask, formula_task

SMALL = {"formulas": 4, "train": 8, "validation": 4, "heldout": 4}


@pytest.mark.parametrize("task", ["compute", "route"])
def test_formula_mini_is_known_by_its_formulas(task: str) -> None:
    benchmark = load_benchmark("formula-mini", task=task, **SMALL)
    rows = [row for split in benchmark.splits for row in split.examples]
    known = SimulatedTask.from_benchmark(benchmark)
    assert [question.text for question in known.questions] == [row.question for row in rows]
    assert [question.target for question in known.questions] == [str(row[known.answer_fields[0]]) for row in rows]
    assert known.answer_fields == tuple(benchmark.signature.output_fields)
    assert len(known.lessons) == len({row.formula for row in rows}) > 1
    assert SimulatedTask.from_benchmark(benchmark, 0) == known


@pytest.fixture
def formula_rows(tmp_path: Path) -> list[dict[str, str]]:
    """Rows in the form of the Formula benchmark, written to files."""
    found = []
    for split, start in (("train", 0), ("validation", 10), ("test", 20)):
        rows = [
            {
                "context": f"Use formula {name} to answer the question. Formula: {name} = a / b, Explanation: a by b. "
                f'Question: "With {start + number} cases, what is the figure of firm X{start + number}?". Answer:',
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
    known = SimulatedTask.from_benchmark(load_benchmark("formula", **params), 3, params=params)
    assert known == formula_task(formula_rows, seed=3)
    assert len(known.lessons) == 2


def test_formula_without_its_parameters_is_refused(formula_rows: list[dict[str, str]], tmp_path: Path) -> None:
    assert formula_rows
    with pytest.raises(ArgumentValueError, match="params"):
        SimulatedTask.from_benchmark(load_benchmark("formula", path=str(tmp_path)))


@pytest.mark.parametrize(("before", "after"), [(None, "True"), ("False", "False")])
def test_an_lm_of_the_service_keeps_dspy_from_asking_outside(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    # Set first, so that it is put back whatever was there.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", before or "")
    if before is None:
        monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP")
    examples = [dspy.Example(question="Which drawer holds it?", answer="left")]
    known = SimulatedTask.from_examples(examples, "question", "answer", key_of=lambda row: row["answer"])
    with SimulatedService(SimulatedConfig(time_scale=0.0), known) as service:
        service.lm()
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == after
