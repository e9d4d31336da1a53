"""The playbook's figures, small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from combee_dspy.bench.playbook import main
from combee_dspy.bench.playbook_runs import METHODS, EpochRow, PlaybookOptions, run_epoch, run_kept
from combee_dspy.bench.playbook_tables import epoch_table, versus
from combee_dspy.exceptions import ArgumentValueError

SMALL = PlaybookOptions(examples=56, heldout=28, slots=16)


def row(method: str, seed: int, score: float, seconds: float | None) -> EpochRow:
    scores = tuple(score if number % 4 else 0.0 for number in range(200))
    return EpochRow(method, seed, seconds, {"task": 10, "reflector": 5, "proposer": 5}, {"task": 1}, 3, 40, scores)


def test_a_batch_that_crowds_one_curator_keeps_less_than_shards_do() -> None:
    rows = {(one.batch, one.method): one for one in run_kept(SMALL, (1, 56))}
    assert rows[1, "naive"].bullets == rows[1, "combee"].bullets
    assert rows[56, "naive"].lessons <= 12 < rows[56, "combee"].lessons
    assert rows[56, "naive"].tokens < rows[56, "combee"].tokens
    assert rows[56, "naive"].heldout < rows[56, "combee"].heldout


def test_a_multiple_is_printed_only_for_what_is_no_worse() -> None:
    rows = [row("ace", 0, 1.0, 900.0), row("combee", 0, 1.0, 30.0), row("ace-batched", 0, 0.5, 30.0)]
    assert versus(rows, "combee").times_faster == pytest.approx(30.0)
    assert versus(rows, "ace-batched").times_faster is None
    table = epoch_table(rows)
    assert "30.0" in table
    assert "not shown to be no worse" in table
    assert "simulated" in table


def test_methods_are_compared_on_the_same_seeds_and_timed_runs_only() -> None:
    with pytest.raises(ArgumentValueError, match="do not pair"):
        versus([row("ace", 0, 1.0, 9.0), row("combee", 1, 1.0, 3.0)], "combee")
    with pytest.raises(ArgumentValueError, match="no timed run"):
        versus([row("ace", 0, 1.0, None), row("combee", 0, 1.0, None)], "combee")
    assert "not shown" not in epoch_table([row("combee", 1, 1.0, 3.0)])


def test_the_command_notes_each_run_and_goes_on(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    noted = tmp_path / "rows.jsonl"
    command = ["epoch", "--examples", "14", "--heldout", "10", "--timed", "0", "--json", str(noted)]
    main([*command, "--methods", "combee"])
    main(command)
    rows = [json.loads(line) for line in noted.read_text(encoding="utf-8").splitlines()]
    assert [one["method"] for one in rows] == ["combee", *(name for name in METHODS if name != "combee")]
    assert all(one["simulated"] for one in rows)
    assert capsys.readouterr().out.count("seconds from 0 of the seeds") == 2


def test_rows_of_other_options_and_broken_lines_are_measured_again(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = tmp_path / "rows.jsonl"
    small = ["epoch", "--examples", "14", "--heldout", "10", "--timed", "0", "--json", str(noted)]
    command = [*small, "--methods", "combee,ace"]
    main(command)
    noted.write_bytes(noted.read_bytes()[:-30])
    main(command)
    main(command)
    lines = noted.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["method"] for line in (lines[0], lines[2])] == ["combee", "ace"]
    assert len(lines) == 3
    main([*command, "--miss-rate", "0.5"])
    last = [json.loads(line) for line in noted.read_text(encoding="utf-8").splitlines()[3:]]
    assert [(one["method"], one["options"]["miss_rate"]) for one in last] == [("combee", 0.5), ("ace", 0.5)]
    assert "left out" in capsys.readouterr().err


def test_a_row_is_measured_again_where_its_seconds_are_missing(tmp_path: Any) -> None:
    noted = tmp_path / "rows.jsonl"
    command = ["epoch", "--examples", "14", "--heldout", "10", "--time-scale", "0.001", "--json", str(noted)]
    for timed in ("0", "1", "1"):
        main([*command, "--methods", "combee", "--timed", timed])
    seconds = [json.loads(line)["seconds"] for line in noted.read_text(encoding="utf-8").splitlines()]
    assert [one is None for one in seconds] == [True, False]


def test_seconds_are_compared_on_the_seeds_that_were_timed_with_both() -> None:
    rows = [
        row("ace", 0, 1.0, 100.0),
        row("ace", 1, 1.0, 900.0),
        row("combee", 0, 1.0, 10.0),
        row("combee", 1, 1.0, None),
    ]
    assert versus(rows, "combee").times_faster == pytest.approx(10.0)
    table = epoch_table(rows)
    assert "| 100 |" in table
    assert "seconds from 1 of the seeds" in table
    assert "fan_in=4" in table


def test_the_difference_is_told_without_a_timed_run() -> None:
    rows = [row(method, seed, score, None) for method, score in (("ace", 1.0), ("combee", 0.8)) for seed in (0, 1)]
    line = next(line for line in epoch_table(rows).splitlines() if "Combee" in line)
    assert "-0.150" in line
    assert line.rstrip(" |").endswith(")")


def test_what_overlooks_lessons_keeps_fewer_and_a_stale_run_learns_as_the_others_do() -> None:
    found = {}
    for miss in (0.0, 0.7):
        options = PlaybookOptions(examples=56, heldout=10, slots=16, miss_rate=miss)
        for one in run_epoch(options, 0, timed=False, methods=("combee", "combee-stale")):
            found[miss, one.method] = one
    assert found[0.7, "combee"].bullets < found[0.0, "combee"].bullets
    # Bullets that broke off may stand beside whole ones for a while.
    assert abs(found[0.0, "combee-stale"].bullets - found[0.0, "combee"].bullets) <= 4
    assert all(one.calls["task"] == one.calls["reflector"] == 56 for one in found.values())
