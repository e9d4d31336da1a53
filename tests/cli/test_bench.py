from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from combee_dspy import bench
from combee_dspy.bench import Comparison, MethodResult, SpeedOptions
from combee_dspy.cli import ExitCode, main


def shell(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def result(method: str, seconds: float, versus: Comparison | None = None) -> MethodResult:
    calls, tokens = {"task": 1_200, "reflect": 80}, {"task": 56_000, "reflect": 7_000}
    return MethodResult(method, seconds, seconds / 5, 80, calls, tokens, 0.25, 0.7, 0.3, 0.8, 0.4, 0.6, (1.0,), versus)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SpeedOptions]:
    """Stands in for the measurement: notes what it was asked."""
    found: list[SpeedOptions] = []

    def measured(options: SpeedOptions) -> Iterator[MethodResult]:
        found.append(options)
        yield result("gepa", 1_000.0)
        if "combee" in options.methods:
            worse = options.seed == 1
            low = -0.4 if worse else -0.01
            times = None if worse else 8.0
            yield result("combee", 125.0, Comparison("gepa", -0.2, low, 0.05, 0.05, not worse, times))

    monkeypatch.setattr(bench, "run_speed", measured)
    return found


def rows(out: str) -> dict[str, list[str]]:
    cells = ([cell.strip() for cell in line.strip("│ ").split("│")] for line in out.splitlines() if "│" in line)
    return {first: others for first, *others in cells if first}


def test_the_table_says_what_was_measured_and_that_it_is_simulated(
    asked: list[SpeedOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shell(capsys, "bench", "speed")
    assert code == 0, err
    assert asked == [SpeedOptions(time_scale=0.2)]
    assert "simulated service, no language model" in out
    table = rows(out)
    assert table["simulated seconds"] == ["1,000", "125"]
    assert table["times faster than gepa"] == ["reference", "8.0 ×"]
    assert table["task calls"] == ["1,200", "1,200"]
    assert table["slot use"] == ["25.0%", "25.0%"]
    assert table["held-out minus gepa's"] == ["", "-0.200 [-0.010, +0.050]"]
    assert "not comparable" not in out
    assert [line.startswith("simulated service, no language model: ") for line in err.splitlines()] == [True, True]


def test_a_worse_result_gets_no_multiple(asked: list[SpeedOptions], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, "bench", "speed", "--seed", "1")
    assert code == 0
    assert rows(out)["times faster than gepa"] == ["reference", "not comparable"]
    assert "8.0" not in out
    assert "not comparable: held-out is not shown to be within 0.05 of gepa's" in out


def test_options_reach_the_measurement_and_the_record(
    asked: list[SpeedOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "speed.json"
    arguments = (
        "--methods gepa --examples 9 --validation 5 --heldout 7 --slots 3 --time-scale 0.5 --seed 4 --path my/rows"
    )
    code, _, err = shell(capsys, "bench", "speed", *arguments.split(), "--json", str(target))
    assert code == 0, err
    options = SpeedOptions(
        methods=("gepa",),
        examples=9,
        validation=5,
        heldout=7,
        slots=3,
        time_scale=0.5,
        seed=4,
        benchmark="formula",
        params={"path": "my/rows"},
    )
    assert asked == [options]
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["label"] == "simulated service, no language model"
    assert record["command"] == f"combee bench speed {arguments}"
    assert record["results"][0]["seconds"] == 1_000.0


def test_a_record_that_cannot_be_written_is_found_before_measuring(
    asked: list[SpeedOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (tmp_path, tmp_path / "nowhere" / "speed.json"):
        code, _, err = shell(capsys, "bench", "speed", "--json", str(target))
        assert (code, "--json cannot be written" in err) == (2, True)
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--methods", "magic"], 2, "Methods: gepa, combee."),
        (["--methods", " , "], 2, "names no method"),
        (["--time-scale", "0"], 2, "time_scale is not above 0"),
        (["--path", "/no/such/rows"], 4, "no such file or directory"),
    ],
)
def test_bad_input_is_one_line_and_no_table(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, part: str
) -> None:
    got, out, err = shell(capsys, "bench", "speed", *arguments)
    assert (got, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert part in err


def test_sizes_below_one_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--examples", "--validation", "--heldout", "--slots"):
        assert shell(capsys, "bench", "speed", option, "0")[0] == 2


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, "bench", "speed", "--help")
    assert code == 0
    listed = [line.split()[0] for line in out.split("Exit codes:")[1].split("\n\n")[0].splitlines() if line.strip()]
    assert listed == [str(one.value) for one in ExitCode]
    assert "no less" in out
