from __future__ import annotations

import json
from pathlib import Path

import pytest

from combee_dspy.bench import SpeedOptions, speed_record, summarize_speed
from combee_dspy.bench.speed_seeds import compared, main, read_seed, table
from combee_dspy.exceptions import ArgumentValueError
from tests.bench.test_speed_quality import run

RIGHT = [1.0] * 8


def written(
    folder: Path, seed: int, seconds: tuple[float, float], *, after: list[float] = RIGHT, **changed: object
) -> Path:
    """Write what ``combee bench speed --json`` writes of two methods on one seed."""
    options = SpeedOptions(seed=seed, seeds=(seed,), **changed)  # type: ignore[arg-type]
    runs = [run("gepa", RIGHT, seed=seed, repeat=0, seconds=seconds[0])]
    runs += [run("combee", after, seed=seed, repeat=at, seconds=seconds[1] + at - 1) for at in range(3)]
    record = speed_record(options, summarize_speed(options.methods, runs, seed=seed), runs, "combee bench speed")
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def test_seeds_stand_in_order_with_their_medians(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [written(tmp_path, seed, took) for seed, took in ((2, (1_200.0, 20.0)), (0, (900.0, 30.0)))]
    paths.append(written(tmp_path, 1, (1_000.0, 25.0)))
    main([str(path) for path in paths])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[2:7] == [
        ["0", "900", "30.0 (30.0)"],
        ["1", "1,000", "25.0 (40.0)"],
        ["2", "1,200", "20.0 (60.0)"],
        ["median", "1,000", "25.0 (40.0)"],
        ["least times faster", "reference", "30.0"],
    ]
    assert ["task tokens", "100", "100"] in rows
    assert ["held-out, 3 seeds", "1.000", "1.000"] in rows
    assert rows[-1] == ["minus `gepa`'s, 95 %", "", "+0.000 (+0.000 to +0.000)"]


def test_held_out_is_paired_by_question_and_seed(tmp_path: Path) -> None:
    halves = [[1.0] * 4 + [0.5] * 4, [0.5] * 4 + [1.0] * 4]
    files = [read_seed(written(tmp_path, seed, (100.0, 10.0), after=after)) for seed, after in enumerate(halves)]
    found = compared(files)["combee"]
    assert found.difference == pytest.approx(-0.25)
    assert found.low < found.difference < found.high < 0


def test_who_learned_less_gets_no_multiple_on_any_seed(tmp_path: Path) -> None:
    worse = [1.0] * 6 + [0.0] * 2
    files = [
        read_seed(written(tmp_path, 0, (100.0, 10.0))),
        read_seed(written(tmp_path, 1, (100.0, 10.0), after=worse)),
    ]
    assert compared(files)["combee"].times_faster is None
    said = table(files)
    assert "not comparable" in said
    assert "10.0 |" in said
    assert "(10.0)" not in said


def test_files_of_one_seed_or_of_different_runs_are_refused(tmp_path: Path) -> None:
    first = read_seed(written(tmp_path, 0, (100.0, 10.0)))
    with pytest.raises(ArgumentValueError, match="one seed twice"):
        compared([first, first])
    with pytest.raises(ArgumentValueError, match="differ in time_scale between seeds 0 and 1"):
        compared([first, read_seed(written(tmp_path, 1, (100.0, 10.0), time_scale=1.0))])
    with pytest.raises(ArgumentValueError, match="names none"):
        table([])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"options": {"seed": 0}, "runs": [], "results": [{}]}'])
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentValueError, match=r"is no file of combee bench speed --json.*other\.json"):
        read_seed(path)
    with pytest.raises(ArgumentValueError, match="FileNotFoundError"):
        read_seed(tmp_path / "missing.json")


def test_a_run_that_was_cut_off_before_its_methods_ended_is_refused(tmp_path: Path) -> None:
    whole, short = (read_seed(written(tmp_path, seed, (100.0, 10.0))) for seed in (0, 1))
    methods = {"gepa": short.methods["gepa"]}
    with pytest.raises(ArgumentValueError, match="differ in methods"):
        compared([whole, type(short)(short.seed, short.measured, methods)])
