"""The conformance kit on benchmarks whose rows are here, and on rows alone."""

from __future__ import annotations

import pytest
from benchmark_rows import formula_row, record, write

from combee_dspy.benchmarks import Benchmark, Finer, Formula, FormulaMini
from combee_dspy.testing import checks_for


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> list[Benchmark]:
    home = tmp_path_factory.mktemp("rows")
    finer = write(
        home / "finer", train=[record(1), record(2)], validation=[record(3)], test=[record(4)]
    )
    formula = write(
        home / "formula", train=[formula_row(1)], validation=[formula_row(3)], test=[formula_row(4)]
    )
    return [
        Formula(str(formula)),
        Formula(str(formula), formula_text=True, reasoning=False),
        Finer(str(finer)),
        Finer(str(finer), label_list="record", unit="record"),
        FormulaMini(train=24, validation=12, heldout=12),
        FormulaMini("compute", formulas=("Quick Ratio", "Current Ratio"), levels=(1, 3), train=4),
    ]


@pytest.mark.parametrize("number", range(6))
def test_every_benchmark_with_rows_passes_every_check(built, number):
    for check in checks_for(built[number]):
        check(built[number])


def test_one_row_becomes_an_example_without_a_source():
    assert Finer(label_list="hidden").to_example(record(1)).tags == record(1)["target"]
    assert Formula().to_example(formula_row(7)).question == "Assets are $7. Find it."


def test_a_row_of_finloras_other_form_is_read():
    old = {
        "context": (
            'Use formula Ratio (R) to answer this question:  "What is $4 over $2?"\n with a'
            " numerical answer and with no explanations or other text. Answer:"
        ),
        "target": "2.0",
    }
    assert Formula().to_example(old).question == "What is $4 over $2?"
