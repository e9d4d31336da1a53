"""Scale, sweep, capacity and client, as small as they go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from combee_bench import capacity, client, placement, scale, sweep
from combee_bench.options import (
    CapacityOptions,
    ClientOptions,
    PlacementOptions,
    ScaleOptions,
    SweepOptions,
)
from combee_bench.scale import ScaleRow
from combee_dspy.exceptions import ArgumentError


@pytest.mark.slow
def test_a_scan_is_measured_in_a_process_of_its_own() -> None:
    options = ScaleOptions(sizes=(12,), aggregators=("union",), time_scale=0.001)
    (row,) = scale.run(options)
    assert (row.levels, row.calls, row.lessons, row.failed, row.refused) == ((3, 1), 3, 12, 0, None)
    assert row.covered == 1.0
    assert row.simulated_seconds is not None
    assert row.peak_mib > 0
    assert scale.passed(options, [row]) is row.holds is True
    assert not scale.passed(options, [replace(row, failed=1)])


def test_growth_is_an_exponent() -> None:
    row = ScaleRow("union", 10, (3, 1), 3, 1.0, 1.0, 1.0, 0.0, 100, 0, 2.0, 10, 1.0, 0, None)
    rows = [
        replace(
            row,
            reflections=n,
            calls=n,
            prompt_tokens=n * n,
            simulated_seconds=5.0,
            cpu_seconds=n**0.5,
        )
        for n in (10, 100, 1000)
    ]
    found = scale.exponents(rows)["union"]
    assert found == {
        "simulated seconds": pytest.approx(0.0),
        "calls": pytest.approx(1.0),
        "tokens": pytest.approx(2.0),
        "CPU seconds": pytest.approx(0.5),
    }
    assert scale.exponents(rows[:2])["union"]["calls"] is None


def test_a_sweep_counts_the_planted_lessons_that_are_kept() -> None:
    options = SweepOptions(
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
        assert row.kept is not None
        assert 0 < row.kept <= row.taught
        assert row.tokens > row.calls > 0
    # One call attends to 12 items; shards do so each.
    assert (single.kept or 0) <= 12 < (union.kept or 0)
    assert single.before == union.before <= union.after
    cells = sweep.summary(options, rows)
    assert [cell["aggregator"] for cell in cells] == ["single-call", "union"]


def test_which_aggregator_keeps_more_is_decided_by_the_law() -> None:
    laws = ("collapse", "dilution", "unlimited")
    options = SweepOptions(
        aggregators=("single-call", "parallel-scan"),
        sizes=(40,),
        laws=laws,
        seeds=(0,),
        examples=40,
        heldout=1,
    )
    kept = {
        (row.law, row.aggregator): (row.kept or 0) / (row.taught or 1) for row in sweep.run(options)
    }
    # The paper's result: naive at 40 keeps a small part, the scan most.
    assert kept["collapse", "single-call"] < 0.3
    assert kept["collapse", "parallel-scan"] > 0.9
    # Through the same published figure, and it does not hold.
    assert kept["dilution", "parallel-scan"] < 0.3
    assert kept["unlimited", "single-call"] == 1.0


def test_where_copies_lie() -> None:
    options = PlacementOptions(sizes=(6, 240), windows=(0, 4), fan_in=16, draws=5, law="unlimited")
    rows = {
        (row.reflections, row.copies, row.placement, row.window): row
        for row in placement.run(options)
    }
    assert len(rows) == 16
    assert {row.kept for row in rows.values()} == {1.0}
    assert all(
        row.doubled == 0 for row in rows.values() if row.placement == "distinct" or row.copies == 1
    )
    assert rows[240, 2, "plain", None].doubled > 0
    # Two shards hold everything twice; one copy each is half of that.
    assert (rows[6, 2, "distinct", None].made, rows[6, 2, "distinct", None].meet) == (2, 1.0)
    assert [rows[6, copies, "distinct", None].read for copies in (1, 2)] == [6, 12]
    # Thirty shards in seven blocks: about one pair in seven can ever meet.
    assert rows[240, 2, "distinct", 4].shards == 30
    assert rows[240, 2, "distinct", 4].ever == pytest.approx(1 / 7, abs=0.01)
    assert rows[240, 2, "distinct", 4].meet <= rows[240, 2, "distinct", 4].ever
    assert rows[240, 2, "distinct", None].ever > 0.3


def test_the_limit_finds_what_a_service_takes() -> None:
    options = CapacityOptions(
        modes=("changing",), clients=("plain",), slots=6, rollouts=120, seconds=1.0, time_scale=0.02
    )
    (row,) = capacity.run(options)
    assert row.failed == 0
    assert row.peak >= 6
    assert row.limits
    assert [phase.slots for phase in row.phases] == [6, 3]
    assert all(0 < phase.busy <= 6 for phase in row.phases)


@pytest.mark.slow
def test_a_client_is_measured_against_a_service_that_answers_at_once() -> None:
    with client.instant_service() as api_base:
        for name in ("evaluate-plain", "threads-plain", "asyncio-pooled", "compile-pooled"):
            found = client.measured(name, api_base, rollouts=20, workers=4)
            assert min(found.values()) > 0, name
    with pytest.raises(ArgumentError, match="rows"):
        client.run(ClientOptions(rows=("nothing",)))
