from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from combee_dspy.bench import LABEL, MethodResult, SpeedOptions, run_speed, speed_record
from combee_dspy.exceptions import ArgumentValueError, DataSourceError

TINY = SpeedOptions(examples=6, validation=4, heldout=5, slots=4, time_scale=0.001)
NAMES = ("Current Ratio", "Gross Margin", "Quick Ratio")


@pytest.fixture(scope="module")
def results() -> list[MethodResult]:
    return list(run_speed(TINY))


def test_methods_come_in_order_with_their_figures(results: list[MethodResult]) -> None:
    assert [result.method for result in results] == ["gepa", "combee"]
    for result in results:
        assert result.simulated
        assert result.iterations >= 1
        # An epoch, and the validation set for the student.
        assert result.calls["task"] >= TINY.examples + TINY.validation
        assert result.tokens["task"] > result.calls["task"]
        assert len(result.heldout_scores) == TINY.heldout
        assert result.after == pytest.approx(sum(result.heldout_scores) / TINY.heldout)
        assert result.low <= result.after - result.before <= result.high
        assert result.seconds == pytest.approx(result.wall_seconds / TINY.time_scale)
        assert 0 < result.slot_use <= 1


def test_the_second_is_compared_with_the_first(results: list[MethodResult]) -> None:
    first, second = results
    assert first.versus is None
    assert second.versus is not None
    assert second.versus.reference == "gepa"
    assert second.versus.difference == pytest.approx(second.after - first.after)
    assert second.versus.comparable is (second.versus.times_faster is not None)


def test_gepa_draws_three_examples_an_iteration(results: list[MethodResult]) -> None:
    assert results[0].iterations == TINY.examples / 3


def test_the_record_is_json_and_says_what_it_is(results: list[MethodResult]) -> None:
    record = json.loads(json.dumps(speed_record(TINY, results, "combee bench speed")))
    assert record["label"] == LABEL == "simulated service, no language model"
    assert record["simulated"] is True
    assert record["command"] == "combee bench speed"
    assert {"python", "combee-dspy", "dspy", "gepa"} <= set(record["versions"])
    assert {"system", "processor", "cores", "load_average"} == set(record["machine"])
    assert record["date"].endswith("+00:00")
    assert record["options"]["examples"] == TINY.examples
    assert [one["method"] for one in record["results"]] == ["gepa", "combee"]
    assert record["results"][1]["versus"]["reference"] == "gepa"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (replace(TINY, methods=("gepa", "magic")), "'magic'"),
        (replace(TINY, methods=("combee", "combee")), "named twice"),
        (replace(TINY, methods=()), "names no method"),
        (replace(TINY, time_scale=0.0), "time_scale"),
        (replace(TINY, heldout=0), "heldout"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(options: SpeedOptions, part: str) -> None:
    with pytest.raises(ArgumentValueError, match=part):
        run_speed(options)


@pytest.fixture
def formula_rows(tmp_path: Path) -> Path:
    """Rows in the form of the Formula benchmark."""
    for split, start in (("train", 0), ("validation", 100), ("test", 200)):
        rows = []
        for number in range(start, start + 9):
            name = NAMES[number % len(NAMES)]
            context = (
                f"Use formula {name} to answer the question. Formula: {name} = a / b, Explanation: a over b. "
                f'Question: "With {number} cases on hand, what is the figure of the firm called X{number}?". Answer:'
            )
            rows.append(json.dumps({"context": context, "target": f"{number}.5"}))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return tmp_path


def test_rows_of_formula_are_cut_to_size_and_known_by_their_formula(formula_rows: Path) -> None:
    source = {"benchmark": "formula", "params": {"path": str(formula_rows)}}
    (result,) = run_speed(replace(TINY, methods=("gepa",), **source))
    assert len(result.heldout_scores) == TINY.heldout
    assert result.iterations == TINY.examples / 3
    assert result.calls["reflect"] >= 1


def test_what_formula_teaches_carries_over_to_questions_that_were_not_seen(formula_rows: Path) -> None:
    source = {"benchmark": "formula", "params": {"path": str(formula_rows)}}
    (result,) = run_speed(replace(TINY, methods=("gepa",), examples=9, validation=9, heldout=9, **source))
    assert result.after > result.before


def test_more_rows_than_there_are_is_refused(formula_rows: Path) -> None:
    source = {"benchmark": "formula", "params": {"path": str(formula_rows)}}
    with pytest.raises(ArgumentValueError, match="Give 1 to 9"):
        run_speed(replace(TINY, examples=10, **source))


def test_formula_without_rows_is_an_error() -> None:
    with pytest.raises(DataSourceError, match="no path"):
        run_speed(replace(TINY, benchmark="formula", params={}))
