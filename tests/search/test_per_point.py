"""What a held-out point above a serial baseline has cost: never one above the run's own student."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Costs, Heldout, Price
from combee_dspy.evaluation import CostPerPoint, PairedDifference, SerialBaseline
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import NO_BASELINE
from combee_dspy.tracking import runs
from combee_dspy.tracking.report import write_report
from tests.slow import slow_but
from tests.worlds import World, examples, rows


def run(
    world: World, place: Path | None, baseline: Any = None, held: Any = None, **settings: Any
) -> Any:
    arguments = Heldout(held or examples(10, 200), baseline=baseline)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(log_dir=place, **settings)
        data = {"trainset": examples(24), "valset": examples(12, 100), "heldout": arguments}
        return combee.compile(dspy.Predict("question -> answer"), **data).combee_report


def test_the_cost_is_the_searchs_own_by_the_points_above_the_baseline(
    world: World, tmp_path: Path
) -> None:
    prices = Costs(
        prices={"task": Price(1, 1), "proposer": Price(1, 1)}, gpus={"task": 2, "proposer": 1}
    )
    report = run(world, tmp_path / "log", SerialBaseline(0.3, rollouts=400), costs=prices)
    cost, gain = report.per_point, 100 * (report.heldout.after - 0.3)
    assert gain > 0
    assert cost.points == pytest.approx(gain)
    search = "FROM usage u JOIN effect e ON e.id = u.effect WHERE e.purpose <> 'heldout'"
    (spent,) = rows(
        tmp_path / "log", f"SELECT sum(prompt_tokens + completion_tokens) AS tokens {search}"
    )
    assert cost.tokens == pytest.approx(spent["tokens"] / gain)
    assert cost.rollouts == pytest.approx(report.rollouts / gain)
    assert cost.dollars == pytest.approx(spent["tokens"] / 1e6 / gain)
    assert 0 < cost.gpu_seconds < report.costs.total.gpu_seconds / gain
    sentence = str(cost)
    assert "over the serial baseline's 0.300 (400.0 rollouts)" in sentence
    assert runs(tmp_path / "log")[0]["per_point"] == sentence
    assert sentence in write_report(tmp_path / "log", tmp_path / "r.html").read_text().replace(
        "&#39;", "'"
    )


def test_without_a_baseline_no_cost_is_stated(world: World, tmp_path: Path) -> None:
    report = run(world, tmp_path / "log")
    assert report.heldout.difference > 0, "against its own student there would be one"
    assert report.per_point is None
    assert runs(tmp_path / "log")[0]["per_point"] == NO_BASELINE
    page = write_report(tmp_path / "log", tmp_path / "r.html").read_text()
    assert "Cost per held-out point: unknown without a serial baseline." in page


def test_dollars_that_are_unknown_stay_so_and_the_rest_is_given(world: World) -> None:
    cost = run(world, None, SerialBaseline(0.3)).per_point
    assert cost.dollars is None
    assert cost.gpu_seconds is None
    assert (
        f"{cost.rollouts:,.1f} rollouts, {cost.tokens:,.0f} tokens, {cost.seconds:,.1f} s,"
        " dollars" in str(cost)
    )


def test_a_result_that_is_not_above_has_no_cost_a_point(world: World) -> None:
    report = run(world, None, SerialBaseline(1.0))
    assert report.per_point.points <= 0
    assert report.per_point.rollouts is report.per_point.tokens is None
    assert "it bought none above it" in str(report.per_point)


def test_a_point_is_a_hundredth_of_the_perfect_score() -> None:
    spent = SerialBaseline(0.0, rollouts=100)
    cost = CostPerPoint.of(SerialBaseline(60.0), 70.0, spent, point=1.0)
    assert (cost.points, cost.rollouts) == (10.0, 10.0)


def test_a_speed_is_never_said_without_the_guarantee_beside_it() -> None:
    serial, spent = (
        SerialBaseline(0.5, seconds=300.0),
        SerialBaseline(0.6, rollouts=100, seconds=100.0),
    )
    better = PairedDifference(0.5, 0.6, 0.1, -0.019, 0.2, 100, 0.95)
    cost = CostPerPoint.of(serial, 0.6, spent, point=0.01, versus=better)
    assert cost.speedup == 3.0
    assert (
        "3 times as fast, held-out no more than 0.02 worse (paired -0.019 to +0.200, 95% interval)"
        in str(cost)
    )
    assert cost.seconds == pytest.approx(10.0)
    # Of figures that somebody gave, of a result that may be worse, and by a margin that is finer,
    # none is said.
    wide = replace(better, low=-0.021)
    for versus, margin in ((None, 0.02), (wide, 0.02), (better, 0.01)):
        cost = CostPerPoint.of(serial, 0.6, spent, point=0.01, versus=versus, margin=margin)
        assert cost.speedup is None
        assert "times as fast" not in str(cost)
        assert "no speed is stated" in str(cost)


def test_what_was_measured_with_another_model_is_no_guarantee(world: World, tmp_path: Path) -> None:
    run(world, tmp_path / "serial", max_metric_calls=30, reflection_minibatch_size=3, num_threads=1)
    world.task_lm.model = "another"
    cost = run(world, tmp_path / "log", tmp_path / "serial").per_point
    assert cost.versus is None
    assert "no speed is stated" in str(cost)


def test_a_baseline_is_read_from_the_folder_of_a_serial_run(world: World, tmp_path: Path) -> None:
    small = {"max_metric_calls": 30, "reflection_minibatch_size": 3, "num_threads": 1}
    serial = run(world, tmp_path / "serial", **small)
    report = run(world, tmp_path / "log", tmp_path / "serial")
    assert report.per_point.baseline.score == serial.heldout.after
    assert report.per_point.baseline.rollouts == serial.rollouts
    assert 0 < report.per_point.baseline.seconds <= serial.seconds
    versus = report.per_point.versus
    assert (versus.before, versus.after) == (serial.heldout.after, report.heldout.after)
    assert versus.difference == pytest.approx(versus.after - versus.before)
    assert report.per_point.baseline.tokens < sum(
        row["tokens"] for row in runs(tmp_path / "serial")
    )
    asked = world.asked
    with pytest.raises(ArgumentValueError, match="read these held-out rows"):
        run(world, tmp_path / "other", str(tmp_path / "serial"), held=examples(9, 200))
    assert world.asked == asked, "nothing was bought"


@pytest.mark.parametrize("folder", slow_but((True,), [False, True]))
def test_a_file_says_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, folder: bool
) -> None:
    from combee_dspy.cli import main

    benchmark = {"name": "formula-mini", "params": {"train": 24, "validation": 12, "heldout": 12}}
    file = {
        "data": {"benchmark": benchmark},
        "lms": {"task": {"model": "simulated", "time_scale": 0}},
        "budget": {"rollouts": 60},
        "tracker": [],
    }

    def printed(**more: Any) -> str:
        (tmp_path / "run.yaml").write_text(json.dumps({**file, **more}))
        with pytest.raises(SystemExit) as ended:
            main(["run", str(tmp_path / "run.yaml")])
        assert not ended.value.code
        return capsys.readouterr().out

    assert NO_BASELINE in printed(log_dir="serial")
    baseline = "serial" if folder else {"score": 0.01, "rollouts": 400}
    assert "the serial baseline's 0." in printed(
        log_dir="log", heldout={"baseline": baseline}, seed=1
    )
