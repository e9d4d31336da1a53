from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from fractions import Fraction
from typing import get_args

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.benchmarks import FormulaMini, load_benchmark
from combee_dspy.benchmarks.formula_mini.benchmark import route_metric
from combee_dspy.benchmarks.formula_mini.formulas import BY_NAME
from combee_dspy.benchmarks.formula_mini.generate import LEVELS, Task, cell_rows, rounded
from combee_dspy.exceptions import ArgumentError, DataSourceError


def read(task: Task) -> list[dict[str, object]]:
    return [
        row
        for name in BY_NAME
        for level in LEVELS[task]
        for row in cell_rows(task, 0, (name, level), 7)
    ]


def test_there_are_enough_formulas_and_phrasings():
    assert len(BY_NAME) >= 24
    assert all(
        len(set(formula.questions)) >= 5 and len(set(formula.jargon)) >= 2
        for formula in BY_NAME.values()
    )


def test_the_rows_are_those_that_results_were_measured_on():
    digests = {}
    for task, count in (("route", 22), ("compute", 5)):
        rows = [
            row
            for name in BY_NAME
            for level in LEVELS[task]
            for row in cell_rows(task, 0, (name, level), count)
        ]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        digests[task] = hashlib.sha256(text.encode()).hexdigest()
    assert digests == {
        "route": "af68ad9ddac6ce1a483a6204e45c00d38125e52eeb42134eb1389fa6dd378b9c",
        "compute": "4630de1e00c268d4a072b490cfa7a4f8c1b0e52fb125c97cb670ea30c5607eeb",
    }


@pytest.mark.parametrize("task", ["route", "compute"])
def test_no_question_occurs_twice(task):
    questions = Counter(row["question"] for row in read(task))
    assert max(questions.values()) == 1


def test_routing_questions_are_short_filled_in_and_give_nothing_away():
    for row in read("route"):
        question, name = str(row["question"]), str(row["formula"])
        assert len(question.split()) < 45
        assert "{" not in question
        assert name.lower() not in question.lower()
        for word in BY_NAME[name].giveaways if row["level"] == 2 else ():
            assert not re.search(rf"\b{re.escape(word)}\b", question.lower()), (
                name,
                word,
                question,
            )


def test_a_longer_list_of_rows_starts_with_the_shorter():
    for task, cell in (("route", ("Gross Margin", 0)), ("compute", ("Gross Margin", 3))):
        assert cell_rows(task, 5, cell, 20)[:7] == cell_rows(task, 5, cell, 7)


@given(st.integers(min_value=-(10**6), max_value=10**6), st.integers(min_value=1, max_value=999))
def test_rounding_is_to_the_nearest_cent(numerator, denominator):
    value = Fraction(numerator, denominator)
    assert abs(Fraction(rounded(value)) - value) <= Fraction(1, 200)
    assert rounded(-value).removeprefix("-") == rounded(value).removeprefix("-")


@pytest.mark.parametrize(("task", "cells"), [("route", 24), ("compute", 84)])
def test_default_splits_are_balanced_disjoint_and_repeatable(task, cells):
    found, again = (
        load_benchmark("formula-mini", task=task),
        load_benchmark("formula-mini", task=task),
    )
    assert found.pins == again.pins
    hashes = [set(split.row_hashes) for split in found.splits]
    assert sum(len(split) for split in found.splits) == len(set.union(*hashes))
    label = "formula" if task == "route" else "answer"
    rows = (
        row
        for name in BY_NAME
        for level in LEVELS[task]
        for row in cell_rows(task, 0, (name, level), 12)
    )
    row_of = {row["question"]: row for row in rows}
    for split in found.splits:
        count = Counter(
            (row_of[e.question]["formula"], row_of[e.question]["level"]) for e in split.examples
        )
        assert len(count) == cells
        assert max(count.values()) == min(count.values())
        assert all(row_of[example.question][label] == example[label] for example in split.examples)
    order = [example[label] for example in found.train.examples]
    assert order != sorted(order)


def test_held_out_stays_when_the_other_sizes_change():
    one = load_benchmark("formula-mini", formulas=6, train=12, validation=6, heldout=60)
    other = load_benchmark("formula-mini", formulas=6, train=90, validation=30, heldout=60)
    assert one.pins["heldout"] == other.pins["heldout"]
    assert [len(split) for split in other.splits] == [90, 30, 60]


def test_uneven_sizes_are_met_exactly():
    loaded = load_benchmark("formula-mini", formulas=7, train=25, validation=3, heldout=11)
    assert [len(split) for split in loaded.splits] == [25, 3, 11]
    count = Counter(example.formula for example in loaded.train.examples)
    assert set(count.values()) == {3, 4}


def test_more_rows_keep_held_out_and_another_seed_makes_others():
    few = load_benchmark("formula-mini", formulas=6, train=60, validation=60, heldout=60)
    more = load_benchmark("formula-mini", formulas=6, train=300, validation=60, heldout=60)
    other = load_benchmark("formula-mini", formulas=6, train=60, validation=60, heldout=60, seed=1)
    assert "generated by combee_dspy with seed 1" in other.source
    assert more.pins["heldout"] == few.pins["heldout"]
    assert not set(other.heldout.row_hashes) & set(few.heldout.row_hashes)


def test_formulas_are_the_first_n_or_those_named():
    three = load_benchmark("formula-mini", formulas=3, train=3, validation=3, heldout=3)
    assert get_args(three.signature.output_fields["formula"].annotation) == tuple(BY_NAME)[:3]
    names = ("Quick Ratio", "Current Ratio")
    named = load_benchmark("formula-mini", formulas=names, train=4, validation=2, heldout=2)
    assert get_args(named.signature.output_fields["formula"].annotation) == names
    assert {example.formula for example in named.train.examples} == set(names)
    assert isinstance(named.program(), dspy.Predict)
    assert named.program() is not named.program()


def test_the_default_program_runs_and_scores():
    loaded = load_benchmark("formula-mini", formulas=3, train=3, validation=3, heldout=3)
    example = loaded.train.examples[0]
    program = loaded.program()
    with dspy.context(lm=dspy.utils.DummyLM([{"formula": example.formula}])):
        prediction = program(**example.inputs())
    assert loaded.metric(example, prediction).score == 1.0


def test_levels_can_be_chosen():
    loaded = load_benchmark(
        "formula-mini", task="compute", levels=(3,), train=28, validation=28, heldout=28
    )
    level_of = {row["question"]: row["level"] for row in read("compute")}
    assert {level_of[example.question] for example in loaded.heldout.examples} == {3}
    assert isinstance(loaded.program(), dspy.ChainOfThought)
    assert loaded.tolerant_metric is not None


def test_routing_feedback_tells_the_two_formulas_apart():
    gold = dspy.Example(question="q", formula="Contribution Margin").with_inputs("question")
    wrong = route_metric(gold, dspy.Prediction(formula="Gross Margin"), None, "self", None)
    assert wrong.score == 0.0
    assert BY_NAME["Contribution Margin"].tell in wrong.feedback
    assert BY_NAME["Gross Margin"].tell in wrong.feedback
    assert route_metric(gold, dspy.Prediction(formula="Contribution Margin")).score == 1.0
    for given_text in ("Alchemy", None, ""):
        odd = route_metric(gold, dspy.Prediction(formula=given_text))
        assert odd.score == 0.0
        assert "names no formula" in odd.feedback
        assert "Contribution Margin" in odd.feedback


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("task", "guess"),
        ("formulas", 1),
        ("formulas", 29),
        ("formulas", True),
        ("formulas", "Quick Ratio"),
        ("formulas", ("Quick Ratio",)),
        ("formulas", ("Quick Ratio", "Alchemy")),
        ("formulas", ("Quick Ratio", "Quick Ratio")),
        ("train", 0),
        ("validation", -1),
        ("heldout", 2.5),
        ("levels", ()),
        ("levels", (1, 4)),
    ],
)
def test_bad_parameters_are_refused_by_name(argument, value):
    with pytest.raises(ArgumentError) as caught:
        FormulaMini(**{argument: value})
    assert caught.value.argument.startswith(f"FormulaMini.{argument}")


def test_pins_hold_for_generated_rows_too():
    pins = load_benchmark("formula-mini").pins
    assert load_benchmark("formula-mini", pin=pins).pins == pins
    with pytest.raises(DataSourceError, match="is pinned"):
        load_benchmark("formula-mini", seed=1, pin=pins)
