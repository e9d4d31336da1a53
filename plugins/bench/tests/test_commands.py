"""The commands: options from their classes, rows on stderr, one table, and a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from combee_bench import commands
from combee_dspy.exceptions import ArgumentError

APP = typer.Typer(pretty_exceptions_enable=False)
APP.add_typer(commands.bench, name="bench")
APP.command("compare")(commands.compare)
APP.command("tune-scan")(commands.tune_scan)


@pytest.mark.parametrize(
    "command",
    [
        "bench speed",
        "bench ceiling",
        "compare",
        "tune-scan",
    ],
)
def test_every_option_has_help(command: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output


def test_a_measurement_prints_a_table_and_writes_a_file_that_repeats_it(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    given = (
        "bench speed --methods gepa-40 --seeds 0-1 --examples 6 --validation 4 --heldout 5"
        " --time-scale 0"
    )
    result = CliRunner().invoke(APP, [*given.split(), "--json", str(file)])
    assert result.exit_code == 0, result.exception
    assert "gepa-40, seed 1, repeat 1: held-out" in result.stderr
    assert "One epoch of 6 examples" in result.stdout
    record = json.loads(file.read_text(encoding="utf-8"))
    assert (
        record["command"]
        == "combee bench speed --methods gepa-40 --seeds 0,1 --examples 6 --validation 4 --heldout"
        " 5 --time-scale 0.0"
    )
    assert record["simulated"] is True
    assert {"python", "dspy", "gepa"} <= set(record["versions"])
    assert {"system", "processor", "cores", "load_average"} == set(record["machine"])
    assert [row["seed"] for row in record["rows"]] == [0, 1]
    assert record["summary"][0]["seeds"] == [0, 1]


def test_a_switch_is_repeated_as_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from combee_bench import ceiling

    row = ceiling.CeilingRow("m", "floor", 0, (1.0,), ("a",), 1, 1, 1.0)
    asked = []
    monkeypatch.setattr(ceiling, "run", lambda options: asked.append(options) or [row])
    file = tmp_path / "ceiling.json"
    first = CliRunner().invoke(APP, ["bench", "ceiling", "--tolerant", "--json", str(file)])
    assert first.exit_code == 0, first.exception
    again = CliRunner().invoke(
        APP, json.loads(file.read_text(encoding="utf-8"))["command"].split()[1:]
    )
    assert again.exit_code == 0, again.output
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ("bench speed --seeds one", "--seeds"),
        ("bench speed --json no/such/folder/x.json", "--json"),
        ("compare --prices 1,x", "--prices"),
        ("tune-scan --fan-in 1,8", "TuneScanOptions.fan_in"),
        ("tune-scan --api-base http://gpu:8000", "lm"),
    ],
)
def test_what_cannot_be_used_is_named(given: str, argument: str) -> None:
    result = CliRunner().invoke(APP, given.split())
    assert isinstance(result.exception, ArgumentError)
    assert result.exception.argument.startswith(argument)
