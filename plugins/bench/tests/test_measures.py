"""Scale, sweep, capacity and client, as small as they go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from combee_bench import capacity, client, scale, sweep
from combee_bench.options import CapacityOptions, ClientOptions, ScaleOptions, SweepOptions
from combee_bench.scale import ScaleRow
from combee_dspy.exceptions import ArgumentError


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
        replace(row, reflections=n, calls=n, prompt_tokens=n * n, simulated_seconds=5.0, cpu_seconds=n**0.5)
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
        aggregators=("single-call", "union"), sizes=(24,), laws=("attention",), seeds=(0,), examples=24, heldout=6
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


def test_a_client_is_measured_against_a_service_that_answers_at_once() -> None:
    with client.instant_service() as api_base:
        for name in ("evaluate-plain", "threads-plain", "asyncio-pooled", "compile-pooled"):
            found = client.measured(name, api_base, rollouts=20, workers=4)
            assert min(found.values()) > 0, name
    with pytest.raises(ArgumentError, match="rows"):
        client.run(ClientOptions(rows=("nothing",)))
