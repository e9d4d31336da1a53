"""Studies of this project's own parts, as small as they go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from combee_dspy.exceptions import ArgumentError
from studies import canary, client, placement, sizes, sweep
from studies.__main__ import app


def test_a_sweep_counts_the_planted_lessons_that_are_kept() -> None:
    options = sweep.SweepOptions(
        aggregators=("single-call", "union"),
        sizes=(24,),
        laws=("attention",),
        seeds=(0,),
        examples=24,
        heldout=6,
    )
    single, union = rows = list(sweep.run(options))
    for row in rows:
        assert row.taught is not None
        assert row.retained is not None
        assert 0 < row.retained <= row.taught
        assert row.tokens > row.calls > 0
    # One call attends to 12 items; shards do so each.
    assert (single.retained or 0) <= 12 < (union.retained or 0)
    assert single.before == union.before <= union.after
    cells = sweep.summary(options, rows)
    assert [cell["aggregator"] for cell in cells] == ["single-call", "union"]


def test_which_aggregator_keeps_more_is_decided_by_the_law() -> None:
    laws = ("collapse", "dilution", "unlimited")
    options = sweep.SweepOptions(
        aggregators=("single-call", "parallel-scan"),
        sizes=(40,),
        laws=laws,
        seeds=(0,),
        examples=40,
        heldout=1,
    )
    shares = {
        (row.law, row.aggregator): (row.retained or 0) / (row.taught or 1)
        for row in sweep.run(options)
    }
    # The paper's result: naive at 40 keeps a small part, the scan most.
    assert shares["collapse", "single-call"] < 0.3
    assert shares["collapse", "parallel-scan"] > 0.9
    # Through the same published figure, and it does not hold.
    assert shares["dilution", "parallel-scan"] < 0.3
    assert shares["unlimited", "single-call"] == 1.0


def test_where_copies_lie() -> None:
    options = placement.PlacementOptions(
        sizes=(6, 240), windows=(0, 4), fan_in=16, draws=5, law="unlimited"
    )
    rows = {
        (row.reflections, row.copies, row.placement, row.window): row
        for row in placement.run(options)
    }
    assert len(rows) == 16
    assert {row.retained for row in rows.values()} == {1.0}
    assert all(
        row.doubled == 0 for row in rows.values() if row.placement == "distinct" or row.copies == 1
    )
    assert rows[240, 2, "plain", None].doubled > 0
    # Two shards split what they read, whatever copies are asked for.
    assert (rows[6, 2, "distinct", None].effective, rows[6, 2, "distinct", None].meet) == (1, 0.4)
    assert [rows[6, copies, "distinct", None].read for copies in (1, 2)] == [6, 6]
    # Thirty shards in seven blocks: about one pair in seven can ever meet.
    assert rows[240, 2, "distinct", 4].shards == 30
    assert rows[240, 2, "distinct", 4].ever == pytest.approx(1 / 7, abs=0.01)
    assert rows[240, 2, "distinct", 4].meet <= rows[240, 2, "distinct", 4].ever
    assert rows[240, 2, "distinct", None].ever > 0.3


@pytest.mark.slow
def test_a_client_is_measured_against_a_service_that_answers_at_once() -> None:
    with client.instant_service() as api_base:
        for name in ("evaluate-plain", "threads-plain", "asyncio-pooled", "compile-pooled"):
            figures = client.measure(name, api_base, rollouts=20, workers=4)
            assert min(figures.values()) > 0, name
    with pytest.raises(ArgumentError, match="rows"):
        client.run(client.ClientOptions(rows=("nothing",)))


def test_the_rule_promotes_what_is_better_and_refuses_what_is_worse():
    options = canary.CanaryOptions(
        parts=("rule",), canaries=20, pairs=4000, looks=4, epsilons=(2.0, 0.5), discordance=4.0
    )
    rows = {row.case: row.figures for row in canary.run(options)}
    assert rows["ε 2, true difference +1 points"]["promoted"] == 1.0
    assert rows["ε 0.5, true difference -1 points"]["promoted"] <= 0.05
    assert all(
        row["promoted"] + row["worse"] + row["undecided"] == pytest.approx(1)
        for row in rows.values()
    )
    assert rows["ε 2, true difference +1 points"]["promoted by plug-in bets"] == 1.0
    assert rows["ε 2, true difference -2 points"]["promoted by plug-in bets"] <= 0.05


def test_sizes_shows_what_hangs_on_tau_and_on_the_law() -> None:
    options = sizes.SizesOptions(noise=0.0, alphas=(0.5, 1.0), floors=(0.0, 0.1))
    rows = list(sizes.run(options))
    assert [round(row.exponent, 2) for row in rows] == [0.5, 1.0] * 2
    assert [round(row.floor, 2) for row in rows] == [0.0, 0.0, 0.1, 0.1]
    # b0 · (1/r)^(1/(α+1)).
    assert [round(pick.plateau) for pick in rows[1].picks] == [158, 112, 79, 56, 40]
    # τ is that of the first three sizes, whose law is a little flatter for the floor.
    assert [round(pick.plateau) for pick in rows[3].picks] == [168, 119, 84, 59, 42]


def test_a_study_is_a_command_that_writes_what_it_measures(tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    command = ["sizes", "--alphas", "1", "--floors", "0", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
    assert result.exit_code == 0, result.exception
    assert "exponent" in result.stdout
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["command"] == "python -m studies sizes --alphas 1.0 --floors 0.0"
    refused = CliRunner().invoke(app, ["sweep", "--sizes", "3,1000"])
    assert isinstance(refused.exception, ArgumentError)
    for name in ("canary", "client", "placement", "sweep"):
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
