from __future__ import annotations

import unittest
from typing import ClassVar

import dspy
import pytest
from benchmark_rows import formula_row, record, write

from combee_dspy.benchmarks import BaseBenchmark, Benchmark, Finer, Formula, FormulaMini
from combee_dspy.benchmarks.numeric import AnswerNumber
from combee_dspy.testing import ConformanceError, checks_for
from combee_dspy.testing.checks import benchmarks


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    home = tmp_path_factory.mktemp("rows")
    finer = write(home / "finer", train=[record(1), record(2)], validation=[record(3)], test=[record(4)])
    formula = write(
        home / "formula", train=[formula_row(1), formula_row(2)], validation=[formula_row(3)], test=[formula_row(4)]
    )
    return [
        Formula(str(formula)),
        Formula(str(formula), formula_text=True, reasoning=False),
        Finer(str(finer)),
        Finer(str(finer), label_list="record", unit="record"),
        FormulaMini(train=24, validation=12, heldout=12),
    ]


@pytest.mark.parametrize("check", benchmarks.CHECKS, ids=lambda check: check.__name__)
def test_every_benchmark_with_rows_passes(built, check):
    for benchmark in built:
        assert check in checks_for(benchmark)
        check(benchmark)


class Broken(FormulaMini):
    """A benchmark whose Benchmark is spoiled in one place."""

    name: ClassVar[str] = "formula-mini"
    change: ClassVar[dict[str, object]] = {}

    def load(self) -> Benchmark:
        from dataclasses import replace

        return replace(FormulaMini("compute", train=6, validation=6, heldout=6, formulas=2).load(), **self.change)


def broken(**change: object) -> BaseBenchmark:
    return type("Spoiled", (Broken,), {"change": change})()


def zero(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=0.0, feedback="wrong")


def silent(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=float(getattr(pred, "answer", None) == gold.answer), feedback="")


def evaluating(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=float(float(pred.answer) == float(gold.answer)), feedback="so")


PROGRAM = dspy.Predict(AnswerNumber)


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        ({"metric": zero}, benchmarks.check_scores_and_says_why, "1.0 for the labels themselves"),
        ({"metric": silent}, benchmarks.check_scores_and_says_why, "feedback"),
        ({"metric": evaluating}, benchmarks.check_scores_and_says_why, "raised"),
        ({"tolerant_metric": zero}, benchmarks.check_scores_and_says_why, "never below"),
        ({"program": lambda: PROGRAM}, benchmarks.check_programs_are_fresh, "new dspy.Module"),
        ({"known_noise": {"row 3": "wrong"}}, benchmarks.check_noise_is_listed_by_row, "hash"),
    ],
)
def test_a_broken_benchmark_is_told_what_is_wrong(change, check, said):
    with pytest.raises(ConformanceError, match=said):
        check(broken(**change))


def test_a_benchmark_without_a_card_is_told():
    plain = type("Plain", (Broken,), {"card": None})()
    with pytest.raises(ConformanceError, match="card"):
        benchmarks.check_has_a_card(plain)


def test_held_out_that_leaks_is_found():
    found = FormulaMini("compute", train=6, validation=6, heldout=6, formulas=2).load()
    from dataclasses import replace

    with pytest.raises(ConformanceError, match="shared"):
        benchmarks.check_splits_hold_rows_and_hashes(broken(heldout=replace(found.train, name="heldout")))


def test_without_rows_the_checks_are_skipped_and_the_refusal_is_checked():
    with pytest.raises(unittest.SkipTest, match="no path is given"):
        benchmarks.check_splits_hold_rows_and_hashes(Finer())
    benchmarks.check_a_refusal_names_the_source(Finer())


def test_rows_without_a_form_of_their_own_become_examples_as_they_are():
    class Plain(Broken):
        inputs: ClassVar[tuple[str, ...]] = ("question",)

        def to_example(self, row):
            return BaseBenchmark.to_example(self, row)

    example = Plain().to_example({"question": "q", "answer": "a"})
    assert (example.inputs().keys(), example.answer) == (["question"], "a")


def test_one_row_becomes_an_example_without_a_source():
    assert Finer(label_list="hidden").to_example(record(1)).tags == record(1)["target"]
    assert Formula().to_example(formula_row(7)).question == "Assets are $7. Find it."
