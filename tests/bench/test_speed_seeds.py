from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from combee_dspy.bench import SpeedOptions, speed_record, summarize_speed
from combee_dspy.bench.bound import Bound
from combee_dspy.bench.speed_seeds import compared, main, read_seed, table
from combee_dspy.exceptions import ArgumentValueError
from tests.bench.test_speed_quality import run

RIGHT = [1.0] * 8


def written(
    folder: Path,
    seed: int,
    seconds: tuple[float, float],
    *,
    after: list[float] = RIGHT,
    runs: int = 4,
    **changed: object,
) -> Path:
    """Write what ``combee bench speed --json`` has written after so many of its four runs."""
    options = SpeedOptions(seed=seed, seeds=(seed,), **{"heldout": 8, "repeats": 3, "peer_repeats": 1, **changed})  # type: ignore[arg-type]
    known = [run("gepa", RIGHT, seed=seed, repeat=0, seconds=seconds[0])]
    known += [run("combee", after, seed=seed, repeat=at, seconds=seconds[1] + at - 1) for at in range(3)]
    known = [replace(one, speculative=seed, bound=Bound(1.0, 1.0, 1.0, 1, 10.0)) for one in known[:runs]]
    record = speed_record(options, summarize_speed(options.methods, known, seed=seed), known, "combee bench speed")
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def test_seeds_stand_in_order_with_the_median_of_their_multiples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    took = {2: (1_200.0, 25.0), 0: (900.0, 30.0), 1: (1_000.0, 20.0)}
    assert main([str(written(tmp_path, seed, seconds)) for seed, seconds in took.items()]) == 0
    said, _, *lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert said.startswith("simulated service, no language model; latency (0.5 s")
    assert "at full scale" in said
    assert rows[2:7] == [
        ["0", "900", "30.0 (30.0)"],
        ["1", "1,000", "20.0 (50.0)"],
        ["2", "1,200", "25.0 (48.0)"],
        # Not 1,000 over 25.
        ["median", "1,000", "25.0 (48.0)"],
        ["least times faster", "reference", "30.0"],
    ]
    assert ["task tokens", "100", "100"] in rows
    assert ["held-out", "1.000", "1.000"] in rows
    assert ["efficiency", "0.01", "0.40"] in rows
    assert ["guesses for nothing", "1", "1"] in rows
    assert rows[-1] == ["minus `gepa`'s, 95 %", "", "+0.000 (+0.000 to +0.000)"]


def test_the_order_of_the_files_makes_no_difference(tmp_path: Path) -> None:
    scores = [[1.0] * right + [0.0] * (8 - right) for right in (8, 5, 7, 6)]
    files = [read_seed(written(tmp_path, seed, (100.0, 10.0), after=after)) for seed, after in enumerate(scores)]
    assert table(files[::-1]) == table(files) == table([*files[2:], *files[:2]])


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
    slower = read_seed(written(tmp_path, 1, (100.0, 10.0), time_scale=1.0))
    for files in ([first, slower], [slower, first]):
        with pytest.raises(ArgumentValueError, match="differ in time_scale between seeds"):
            compared(files)
    newer = replace(slower, measured={**first.measured, "versions": {"dspy": "9"}, "temper": 1})
    for files in ([first, newer], [newer, first]):
        with pytest.raises(ArgumentValueError, match="versions") as refused:
            compared(files)
        assert "temper" in str(refused.value)
    with pytest.raises(ArgumentValueError, match="names none"):
        table([])


@pytest.mark.parametrize(("runs", "missing"), [(1, "0 of 3 timed runs of combee"), (3, "2 of 3 timed runs of combee")])
def test_a_run_that_was_cut_off_is_refused(tmp_path: Path, runs: int, missing: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"was cut off: {missing}"):
        read_seed(written(tmp_path, 0, (100.0, 10.0), runs=runs))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[" * 100_000, '{"options": {"seed": 0}, "runs": [], "results": [{}]}'],
    ids=["empty", "list", "object", "deep", "other"],
)
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentValueError, match=r"is no file of combee bench speed --json.*other\.json"):
        read_seed(path)


def test_the_command_says_in_one_line_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing.json")]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert "missing.json" in said.err


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("options", "seed"), 1.5),
        (("options", "seed"), True),
        (("options", "methods"), []),
        (("options", "methods"), "gepa"),
        (("options", "methods"), ["gepa"]),
        (("options", "methods"), ["gepa", "other"]),
        (("results", 1, "method"), "gepa"),
        (("results", 1, "seconds_of"), [0, 0, 0]),
        (("results", 1, "seconds_of"), [-5.0, -5.0, 1.0]),
        (("results", 1, "seconds_of"), [1.0, 1.0, float("nan")]),
        (("results", 1, "seconds_of"), [1.0, 1.0, "1"]),
        (("results", 1, "seconds_of"), [1.0, 1.0, 10**400]),
        (("results", 1, "median", "speculative"), float("inf")),
        (("results", 1, "median", "tokens"), {"task": "many"}),
        (("results", 1, "median", "tokens"), {"task": -1}),
        (("runs", 1, "after"), ""),
        (("runs", 1, "after"), "1111111"),
        (("runs", 1, "after"), "1111111x"),
        (("runs", 1, "after"), "11111119"),
        (("runs", 1, "after"), [*[1.0] * 7, float("nan")]),
        (("runs", 1, "seed"), 5),
        (("runs", 1, "repeat"), 7),
    ],
)
def test_a_file_with_values_that_cannot_be_is_refused(
    tmp_path: Path, where: tuple[str | int, ...], value: object
) -> None:
    path = written(tmp_path, 0, (100.0, 10.0))
    record = json.loads(path.read_text(encoding="utf-8"))
    place = record
    for part in where[:-1]:
        place = place[part]
    place[where[-1]] = value
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ArgumentValueError, match="is no file of combee bench speed --json"):
        read_seed(path)
