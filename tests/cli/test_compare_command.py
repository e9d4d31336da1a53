"""``combee compare``: options in, one table, one record and one picture out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy.baselines import BaselineResult, CurvePoint
from combee_dspy.bench import side_by_side
from combee_dspy.bench.side_by_side import CompareOptions, run_compare
from combee_dspy.cli import ExitCode, main
from combee_dspy.evaluation import Receipt
from combee_dspy.exceptions import ArgumentValueError, UnknownStrategyError


def shell(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def result(method: str, seed: int, right: int, seconds: float) -> BaselineResult:
    before, after = (0.0,) * 40, (1.0,) * right + (0.0,) * (40 - right)
    hashes: tuple[Any, ...] = ("aa", "bb", "cc", ("dd", "ee"), "ff")
    receipt = Receipt(*hashes, {"run": seed}, {}, before, after, (0.0, 1.0), 0.95, 0.1, None, "2026-01-01")
    return BaselineResult(
        method=method,
        spec={"name": method},
        versions={"dspy": "3.4.1", "combee-dspy": "0.1.0"},
        seed=seed,
        curve=(CurvePoint(40, 900, 0.0, 1.0, 0.5, 0.5, "dd"),),
        program=dspy.Predict("q -> a"),
        validation=0.5,
        rollouts=200,
        tokens=1_000,
        dollars=0.0,
        seconds=seconds,
        costs={},
        reason="the method ended",
        receipt=receipt,
        notes=("was given fewer rows",) if method == "combee" else (),
        simulated=True,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CompareOptions]:
    """Stands in for the measurement: notes what it was asked."""
    found: list[CompareOptions] = []

    def measured(options: CompareOptions) -> Iterator[BaselineResult]:
        found.append(options)
        for seed in options.seeds:
            for method in options.methods:
                worse = method == "mipro"
                yield result(method, seed, 4 if worse else 20, {"gepa": 1_000.0}.get(method, 125.0))

    monkeypatch.setattr(side_by_side, "run_compare", measured)
    return found


def rows(out: str) -> dict[str, list[str]]:
    cells = ([cell.strip() for cell in line.strip("│ ").split("│")] for line in out.splitlines() if "│" in line)
    return {first: others for first, *others in cells if first}


def test_the_table_says_what_was_measured_and_that_it_is_simulated(asked, capsys):
    code, out, err = shell(capsys, "compare", "--methods", "gepa,combee")
    assert code == 0, err
    assert "simulated service, no language model" in out
    table = rows(out)
    assert table["held-out after"] == ["0.500", "0.500"]
    assert table["times faster than gepa"] == ["reference", "8.0 ×"]
    assert table["seconds"] == ["1,000", "★ 125"]
    assert "not comparable" not in out
    assert "one seed: intervals say nothing about other seeds" in out
    assert "combee: was given fewer rows" in " ".join(out.split())
    assert [line.split(":")[0] for line in err.splitlines()] == ["simulated service, no language model"] * 2


def test_a_worse_result_gets_no_multiple(asked, capsys):
    code, out, _ = shell(capsys, "compare", "--methods", "gepa,mipro", "--seeds", "0-1")
    assert code == 0
    assert rows(out)["times faster than gepa"] == ["reference", "not comparable"]
    assert "8.0" not in out
    assert "one seed" not in out


def test_options_reach_the_measurement_and_the_record_and_the_picture(asked, capsys, tmp_path: Path):
    record, picture = tmp_path / "c.json", tmp_path / "c.svg"
    sizes = "--budget 90 --train 9 --validation 5 --heldout 7 --threads 3 --time-scale 0.5"
    arguments = f"--methods ace,combee --seeds 3-4 {sizes} --task route --prices 0.5,2".split()
    code, _, err = shell(capsys, "compare", *arguments, "--json", str(record), "--picture", str(picture))
    assert code == 0, err
    assert asked == [
        CompareOptions(
            methods=("ace", "combee"),
            seeds=(3, 4),
            budget=90,
            train=9,
            validation=5,
            heldout=7,
            params={"task": "route"},
            threads=3,
            time_scale=0.5,
            prices=(0.5, 2.0),
        )
    ]
    data = json.loads(record.read_text())
    assert data["simulated"]
    assert "no language model" in data["label"]
    assert {"machine", "versions", "command", "options", "summary", "runs"} <= set(data)
    assert [(run["method"], run["seed"]) for run in data["runs"]] == [
        ("ace", 3),
        ("combee", 3),
        ("ace", 4),
        ("combee", 4),
    ]
    assert data["runs"][0]["curve"][0]["rollouts"] == 40
    assert "no language model" in picture.read_text()
    again = data["command"].split()[1:]
    shell(capsys, *again)
    assert asked[0] == asked[1]


def test_the_embedded_model_gets_the_task_that_it_can_learn(asked, capsys):
    code, out, _ = shell(capsys, "compare", "--lm", "embedded", "--methods", "gepa")
    assert code == 0
    assert (asked[0].lm, asked[0].threads, asked[0].params["task"]) == ("embedded", 4, "route")
    assert "model embedded" in out
    assert "simulated" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seeds", "x"),
        ("--seeds", "4-2"),
        ("--prices", "1"),
        ("--json", "/no/such/folder/c.json"),
        ("--picture", "/no/such/folder/c.svg"),
        ("--benchmark", "formula", "--task", "route"),
    ],
)
def test_bad_options_end_before_anything_is_measured(asked, capsys, arguments):
    code, _, err = shell(capsys, "compare", *arguments)
    assert code == ExitCode.BAD_INPUT
    assert arguments[-2] in err
    assert not asked


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"methods": ("gepa", "no-such")}, UnknownStrategyError),
        ({"methods": ()}, ArgumentValueError),
        ({"methods": ("gepa", "gepa")}, ArgumentValueError),
        ({"seeds": ()}, ArgumentValueError),
        ({"time_scale": 0.0}, ArgumentValueError),
        ({"budget": 3}, ArgumentValueError),
        ({"api_base": "http://somewhere"}, ArgumentValueError),
        ({"lm": "openai/x", "api_key_env": "NO_SUCH_VARIABLE_IS_SET"}, ArgumentValueError),
        ({"prices": (-1.0, 2.0)}, ArgumentValueError),
        ({"benchmark": "formula-mini", "train": 0}, ArgumentValueError),
    ],
)
def test_options_are_refused_before_the_first_method_runs(changes, error):
    with pytest.raises(error):
        run_compare(CompareOptions(**changes))


def test_two_methods_really_run_on_the_same_rows(capsys, tmp_path: Path):
    record = tmp_path / "c.json"
    sizes = "--train 12 --validation 6 --heldout 10 --budget 40 --threads 8 --time-scale 0.001"
    code, out, err = shell(capsys, "compare", "--methods", "gepa,combee", *sizes.split(), "--json", str(record))
    assert code == 0, err
    data = json.loads(record.read_text())
    one, two = data["runs"]
    assert one["receipt"]["split"] == two["receipt"]["split"]
    assert one["receipt"]["before"] == two["receipt"]["before"]
    assert all(run["simulated"] and run["curve"] and run["rollouts"] <= 40 for run in data["runs"])
    assert [one["method"] for one in data["summary"]] == ["gepa", "combee"]
    assert "no language model" in out
