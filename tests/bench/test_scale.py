from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from combee_dspy.bench.scale import ScaleOptions, main, run_scale, scale_code, slopes, table
from combee_dspy.bench.scale_picture import scale_svg
from combee_dspy.bench.scale_rows import (
    MEMORY_LIMIT_MIB,
    ScaleRow,
    Step,
    predicted_seconds,
    slope_of,
    steps_of,
)
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.lms import LatencyLaw
from combee_dspy.lms.simulated import CallRecord, Kind, Status

ROW = ScaleRow(
    aggregator="union",
    reflections=100,
    planned=(10, 0),
    steps=(Step("AddLessons", 10, 240.0),),
    simulated_seconds=8.0,
    predicted_seconds=8.2,
    seconds=8.4,
    cpu_seconds=0.2,
    retention_seconds=0.4,
    retention_cpu_seconds=0.4,
    tokens={"proposer": (18_821, 2_397)},
    base_mib=100.0,
    peak_mib=129.0,
    lessons=89,
    covered=0.9,
    failed=0,
    refused=None,
)


def call(arrived: float, tokens: int) -> CallRecord:
    return CallRecord(Kind.REFLECT, Status.OK, arrived, arrived, arrived + 1, 1.0, 10, tokens, (), "")


def test_steps_take_their_calls_in_the_order_of_arrival() -> None:
    calls = [call(5.0, 100), call(0.1, 10), call(0.0, 30), call(9.0, 7)]
    steps, own = steps_of([("AddLessons", 2), ("Nothing", 0), ("ShortenLessons", 1)], calls)
    assert steps == (Step("AddLessons", 2, 20.0), Step("ShortenLessons", 1, 100.0))
    assert own == 3


def test_the_plan_says_waves_of_calls_where_nothing_varies() -> None:
    law = LatencyLaw(ttft=1.0, tokens_per_second=10.0, sigma=0.0)
    assert predicted_seconds([Step("a", 64, 20.0)], 64, law, 0) == pytest.approx(3.0)
    assert predicted_seconds([Step("a", 65, 20.0)], 64, law, 0) == pytest.approx(6.0)
    assert predicted_seconds([Step("a", 640, 20.0), Step("b", 1, 0.0)], 64, law, 0) == pytest.approx(31.0)
    assert predicted_seconds([], 64, law, 0) == 0.0


def test_calls_that_vary_are_expected_to_take_as_long_as_the_longest() -> None:
    law = LatencyLaw(ttft=1.0, tokens_per_second=10.0, sigma=0.35)
    one, many = (predicted_seconds([Step("a", calls, 20.0)], 64, law, 0) for calls in (1, 64))
    # The mean of a lognormal is exp(sigma²/2) of its median; of 64 draws the longest is more than twice the median.
    assert one == pytest.approx(3.0 * math.exp(0.35**2 / 2), rel=0.15)
    assert 6.0 < many < 9.0


def test_a_slope_is_the_exponent_of_a_power() -> None:
    found = slope_of([(n, 3.0 * n**0.75) for n in (10, 100, 1_000, 10_000)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.75, 0.75, 0.75))
    bent = slope_of([(10, 1.0), (100, 1.0), (1_000, 30.0)])
    assert bent is not None and bent.low < bent.value < bent.high
    assert slope_of([(10, 1.0), (100, None), (1_000, 0.0)]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"peak_mib": MEMORY_LIMIT_MIB},
        {"failed": 1},
        {"refused": "no room"},
        {"steps": (*ROW.steps, Step("MergeLessons", 2, 1.0))},
    ],
)
def test_what_does_not_hold_shows_in_the_exit_code(change: dict[str, Any]) -> None:
    assert scale_code([ROW]) == 0
    assert scale_code([ROW, replace(ROW, **change)]) == 1


def test_a_list_that_is_shortened_is_no_deeper() -> None:
    row = replace(ROW, steps=(*ROW.steps, Step("ShortenLessons", 2, 1.0)))
    assert (row.depth, row.planned_depth, row.calls) == (1, 1, 12)
    assert row.holds


def test_slopes_are_told_by_aggregator_and_only_where_known() -> None:
    rows = [replace(ROW, reflections=n, simulated_seconds=float(n), predicted_seconds=None) for n in (10, 100, 1_000)]
    found = slopes([*rows, replace(ROW, aggregator="parallel-scan")])
    assert found["union"]["seconds"] is not None
    assert found["union"]["seconds"].value == pytest.approx(1.0)
    assert found["union"]["plan's seconds"] is None
    assert set(found["parallel-scan"].values()) == {None}
    assert "| union | seconds | 1.00 |" in table(rows)


def test_the_picture_is_well_formed_and_shows_every_scan() -> None:
    rows = [replace(ROW, reflections=n, seconds=float(n)) for n in (10, 100)]
    drawn = scale_svg([*rows, replace(ROW, aggregator="a<b")], "said & done")
    root = ElementTree.fromstring(drawn)  # noqa: S314 - drawn here
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 6
    assert any(title and title.startswith("a<b, 100 reflections") for title in titles)


def test_a_scan_is_measured_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, picture = tmp_path / "scale.json", tmp_path / "scale.svg"
    files = [f"--json={target}", f"--svg={picture}"]
    assert main(["--sizes=12", "--aggregators=parallel-scan", "--time-scale=0.01", *files]) == 0
    record = json.loads(target.read_text(encoding="utf-8"))
    (row,) = record["rows"]
    assert row["planned"] == [step["calls"] for step in row["steps"]] == [3, 1]
    assert [step["asks"] for step in row["steps"]] == ["LearnFromExamples", "MergeLessons"]
    assert row["failed"] == 0 and row["refused"] is None and row["holds"]
    assert 0 < row["base_mib"] <= row["peak_mib"]
    assert row["simulated_seconds"] > 0 and row["predicted_seconds"] > 0
    assert 0 < row["covered"] <= 1
    assert record["simulated"] is True and record["machine"]["cores"]
    assert "parallel-scan, 12 reflections" in picture.read_text(encoding="utf-8")
    assert "| parallel-scan | 12 | 3+1 | 2 (2) |" in capsys.readouterr().out


@pytest.mark.parametrize("options", [ScaleOptions(sizes=()), ScaleOptions(sizes=(0,))])
def test_sizes_that_cannot_be_scanned_are_refused(options: ScaleOptions) -> None:
    with pytest.raises(ArgumentValueError):
        run_scale(options)


def test_an_unknown_aggregator_is_refused_before_anything_runs() -> None:
    with pytest.raises(ArgumentError):
        run_scale(ScaleOptions(aggregators=("nobody",)))
