from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from combee_dspy import bench
from combee_dspy.bench import Bound, SpeedOptions, SpeedRun, speed_methods
from combee_dspy.cli import ExitCode, main


def shell(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def run(
    method: str, after: float, *, seed: int = 0, repeat: int | None = 0, seconds: float | None = 1_000.0
) -> SpeedRun:
    return SpeedRun(
        method=method,
        seed=seed,
        repeat=repeat,
        seconds=seconds,
        wall_seconds=1.0,
        updates=80,
        sizes=(3, 12, 12, 12),
        picked=12,
        calls={"task": 1_200, "reflect": 80},
        tokens={"task": 56_000, "reflect": 7_000},
        written={"task": 6_000, "reflect": 900},
        speculative=7 if method == "combee" else None,
        slot_use=0.25,
        bound=Bound(capacity=10.0, chain=50.0, staged=80.0, stages=3, schedule=90.0),
        validation=0.7,
        before=(0.0,) * 40,
        after=(after,) * 40,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SpeedOptions]:
    """Stands in for the measurement: notes what it was asked."""
    found: list[SpeedOptions] = []

    def measured(options: SpeedOptions) -> Iterator[SpeedRun]:
        found.append(options)
        for repeat in range(options.repeats):
            yield run("gepa", 1.0, repeat=repeat)
            if "combee" in options.methods:
                yield run("combee", 0.8 if options.seed == 1 else 1.0, repeat=repeat, seconds=125.0)
        for seed in options.seeds:
            for method in options.methods:
                worse = method == "combee" and seed == 3
                yield run(method, 0.0 if worse else 1.0, seed=seed, repeat=None, seconds=None)

    monkeypatch.setattr(bench, "run_speed", measured)
    monkeypatch.setattr(bench, "data_source", lambda options: "rows of ours")
    return found


def rows(out: str) -> dict[str, list[str]]:
    cells = ([cell.strip() for cell in line.strip("│ ").split("│")] for line in out.splitlines() if "│" in line)
    return {first: others for first, *others in cells if first}


def test_the_table_says_what_was_measured_and_that_it_is_simulated(
    asked: list[SpeedOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shell(capsys, "bench", "speed")
    assert code == 0, err
    assert asked == [SpeedOptions(methods=speed_methods.DEFAULT_METHODS, time_scale=0.2)]
    assert "simulated service, no language model" in out
    table = rows(out)
    assert table["simulated s, one epoch"] == ["1,000", "125"]
    assert table["times faster than gepa"] == ["reference", "8.0 ×"]
    assert table["planned sizes"] == ["3 12×3", "3 12×3"]
    assert table["task calls"] == ["1,200", "1,200"]
    assert table["guesses for nothing"] == ["", "7"]
    assert table["slot use"] == ["25.0%", "25.0%"]
    assert table["own schedule, simulated s"] == ["90", "90"]
    assert table["efficiency"] == ["9.0%", "72.0%"]
    assert table["… if long calls were known"] == ["8.0%", "64.0%"]
    assert table["… without barriers"] == ["5.0%", "40.0%"]
    assert table["held-out minus gepa's"] == ["", "+0.000 [+0.000, +0.000]"]
    assert "not comparable" not in out
    assert [line.startswith("simulated service, no language model: ") for line in err.splitlines()] == [True, True]


@pytest.mark.parametrize("arguments", [["--seed", "1"], ["--seeds", "0-9"]])
def test_a_worse_result_gets_no_multiple(
    arguments: list[str], asked: list[SpeedOptions], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, picture = tmp_path / "speed.json", tmp_path / "speed.svg"
    files = ("--json", str(target), "--picture", str(picture))
    code, out, _ = shell(capsys, "bench", "speed", *arguments, *files)
    assert code == 0
    assert rows(out)["times faster than gepa"] == ["reference", "not comparable"]
    assert "8.0 ×" not in out + picture.read_text(encoding="utf-8")
    assert "not comparable: held-out is not shown to be within 0.05 of gepa's" in out
    assert json.loads(target.read_text(encoding="utf-8"))["results"][1]["versus"]["times_faster"] is None


def test_options_reach_the_measurement_and_the_record(
    asked: list[SpeedOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "speed.json"
    arguments = (
        "--methods gepa --examples 9 --validation 5 --heldout 7 --program predict --slots 3 --time-scale 0.5 "
        "--repeats 2 --seed 4 --base-accuracy 0.5 --taught-accuracy 0.855 "
        "--reasoning-tokens 200.0 --reasoning-spread 0.35 --attention items --lessons formula "
        "--peer-repeats 2 --temperature 1.0 "
        "--seeds 0,1,2,7 --path my/rows"
    )
    given = arguments.replace("0,1,2,7", "0-2,7").split()
    code, _, err = shell(capsys, "bench", "speed", *given, "--json", str(target))
    assert code == 0, err
    options = SpeedOptions(
        methods=("gepa",),
        examples=9,
        validation=5,
        heldout=7,
        slots=3,
        time_scale=0.5,
        repeats=2,
        seed=4,
        program="predict",
        base_accuracy=0.5,
        reasoning_tokens=200.0,
        reasoning_spread=0.35,
        attention="items",
        lessons="formula",
        taught_accuracy=0.855,
        peer_repeats=2,
        temperature=1.0,
        seeds=(0, 1, 2, 7),
        benchmark="formula",
        params={"path": "my/rows"},
    )
    assert asked == [options]
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["label"] == "simulated service, no language model"
    assert record["command"] == f"combee bench speed {arguments}"
    assert record["source"] == "rows of ours"
    assert record["results"][0]["seconds"] == 1_000.0
    assert [one["seed"] for one in record["runs"]] == [0, 0, 0, 1, 2, 7]


def test_all_is_every_method_that_this_version_can_make(
    asked: list[SpeedOptions], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_methods, "lacking", lambda name: "much" if name == "combee-scan" else "")
    code, _, err = shell(capsys, "bench", "speed", "--methods", "all")
    assert code == 0
    assert asked[0].methods == tuple(name for name in bench.METHODS if name != "combee-scan")
    assert "left out: combee-scan needs much" in err


def test_an_endpoint_is_named_in_what_is_said(asked: list[SpeedOptions], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, "bench", "speed", "--endpoint", "http://gpu:8000/v1", "--model", "mine")
    assert code == 0
    assert asked[0].endpoint == "http://gpu:8000/v1"
    assert "model mine" in out
    assert "simulated" not in out
    assert rows(out)["s, one epoch"] == ["1,000", "125"]


def test_a_record_that_cannot_be_written_is_found_before_measuring(
    asked: list[SpeedOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--json", "--picture"):
        for target in (tmp_path, tmp_path / "nowhere" / "speed.json"):
            code, _, err = shell(capsys, "bench", "speed", option, str(target))
            assert (code, f"{option} cannot be written" in err) == (2, True)
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--methods", "magic"], 2, "Methods: gepa, gepa-naive-40"),
        (["--seeds", "0-x"], 2, "--seeds is no whole number"),
        (["--endpoint", "http://gpu/v1"], 2, "stands alone"),
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
    for option in ("--examples", "--validation", "--heldout", "--slots", "--repeats"):
        assert shell(capsys, "bench", "speed", option, "0")[0] == 2


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, "bench", "speed", "--help")
    assert code == 0
    listed = [line.split()[0] for line in out.split("Exit codes:")[1].split("\n\n")[0].splitlines() if line.strip()]
    assert listed == [str(one.value) for one in ExitCode]
    assert "no less" in out
