"""One epoch of each method on the simulated service."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from tests.slow import slow_but

from combee_bench import speed
from combee_bench.endpoints import model_endpoint
from combee_bench.options import SpeedOptions
from combee_bench.speed import METHODS, SpeedRun
from combee_bench.surroundings import load_rows
from combee_dspy.exceptions import ArgumentError
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

TINY = SpeedOptions(
    methods=("gepa", "combee"),
    examples=6,
    validation=4,
    heldout=5,
    slots=4,
    time_scale=0.001,
    base_accuracy=0.3,
)


@pytest.fixture(scope="module")
def runs() -> list[SpeedRun]:
    return list(speed.run(replace(TINY, repeats=2, seeds=(0, 1))))


def test_every_method_runs_on_every_seed_in_a_rotated_order(runs: list[SpeedRun]) -> None:
    assert [(run.method, run.seed, run.repeat) for run in runs] == [
        *(("gepa", 0, 0), ("combee", 0, 0), ("gepa", 0, 1), ("combee", 0, 1)),
        *(("combee", 1, 0), ("gepa", 1, 0), ("combee", 1, 1), ("gepa", 1, 1)),
    ]


def test_every_run_has_its_figures(runs: list[SpeedRun]) -> None:
    for run in runs:
        assert run.updates >= 1
        # An epoch, and the validation set for the student.
        assert run.calls["task"] >= TINY.examples + TINY.validation
        assert run.tokens["task"] > run.written["task"] > run.calls["task"]
        assert len(run.before) == len(run.after) == TINY.heldout
        assert run.seconds == pytest.approx(run.wall_seconds / TINY.time_scale)
        assert run.slot_use is not None
        assert 0 < run.slot_use <= 1


def test_gepa_draws_three_examples_an_iteration(runs: list[SpeedRun]) -> None:
    assert {run.updates for run in runs if run.method == "gepa"} == {TINY.examples // 3}


def test_multiples_are_medians_over_seeds(runs: list[SpeedRun]) -> None:
    def took(method: str, seed: int, seconds: float) -> SpeedRun:
        return replace(
            runs[0],
            method=method,
            seed=seed,
            seconds=seconds,
            after=(1.0,) * 200,
            before=(0.0,) * 200,
        )

    given = [took("gepa", 0, 90.0), took("gepa", 1, 40.0), took("gepa", 2, 100.0)]
    given += [took("combee", 0, 10.0), took("combee", 1, 10.0), took("combee", 2, 10.0)]
    given += [took("combee", 2, 30.0)]
    (_, side), seconds = speed.sides_of(SpeedOptions(), given)
    # Of two runs of one seed the median counts, 20.
    assert seconds["combee", 2] == 20.0
    assert side.versus is not None
    assert side.versus.times_faster == 5.0


@pytest.mark.parametrize("method", slow_but(("gepa", "combee"), list(METHODS)))
def test_every_method_runs_an_epoch(method: str) -> None:
    (run,) = speed.run(replace(TINY, methods=(method,), time_scale=0.0))
    assert (run.method, run.seconds, run.slot_use) == (method, None, None)
    assert run.calls["task"] >= TINY.examples + TINY.validation


def test_the_table_says_what_it_stands_on(runs: list[SpeedRun]) -> None:
    from rich.console import Console

    file = io.StringIO()
    Console(width=300, file=file).print(speed.table(replace(TINY, seeds=(0, 1)), runs))
    text = file.getvalue()
    assert "simulated service, no language model" in text
    for said in (
        "times faster than the first",
        "… seed 1, s",
        "right untaught 30.0%",
        "Combee, defaults",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"methods": ("gepa", "nothing")}, "methods"),
        ({"methods": ("gepa", "gepa")}, "methods"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"time_scale": -1.0}, "time_scale"),
        ({"program": "agent"}, "program"),
        ({"base_accuracy": 0.5, "taught_accuracy": 0.4}, "taught_accuracy"),
        ({"api_base": "http://gpu:8000/v1"}, "lm"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    change: dict[str, Any], argument: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        next(speed.run(replace(TINY, **change)))
    assert caught.value.argument.rpartition(".")[2] == argument


def test_a_model_is_counted_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_KEY", "secret")
    rows = load_rows("formula-mini", {"task": "compute"}, train=6, validation=4, heldout=5)
    with SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(rows)) as service:
        where = {"lm": "openai/simulated", "api_base": service.api_base, "api_key_env": "BENCH_KEY"}
        for run in speed.run(replace(TINY, **where)):
            kinds = service.stats().by_kind
            assert run.calls["reflect"] == kinds["reflect"].calls > 0
            # The held-out set is read before and after, and counts for nothing.
            assert run.calls["task"] == kinds["task"].calls - 2 * TINY.heldout
            service.reset_stats()
    with pytest.raises(ArgumentError, match="NO_SUCH_KEY"):
        model_endpoint("openai/simulated", api_key_env="NO_SUCH_KEY")
