"""Several tasks over one pool, against the simulated service and MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee, Task, compile_many, load_benchmark
from combee_dspy.costs import Ledger, LedgerRecorder
from combee_dspy.costs._recorder import is_recorder
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.tracking import MLflowTracker


def test_each_ledger_equals_what_the_service_counted_for_its_task() -> None:
    """Each task has a service of its own, whose counters are the truth."""
    sizes = {"train": 24, "validation": 12, "heldout": 12}
    benchmarks = [load_benchmark("formula-mini", task="compute", formulas=4, seed=n, **sizes) for n in range(3)]
    services = [SimulatedService(SimulatedConfig(time_scale=0.0), SimulatedTask.from_benchmark(b)) for b in benchmarks]
    whole = Ledger()
    try:
        lms = [service.start().lm() for service in services]
        tasks = [
            Task(
                f"task {number}",
                one.program(),
                list(one.train.examples),
                list(one.validation.examples),
                list(one.heldout.examples),
                one.metric,
                context={"lm": lm},
            )
            for number, (one, lm) in enumerate(zip(benchmarks, lms, strict=True))
        ]

        def combee(task: Task) -> Combee:
            lm = task.context["lm"]
            return Combee(
                task.metric or benchmarks[0].metric,
                reflection_lm=lm,
                reflection_minibatch_size=8,
                max_metric_calls=90,
                num_threads=6,
            )

        with LedgerRecorder(whole).installed():
            results = compile_many(tasks, combee=combee, shape="hybrid", at_once=3)
        counted = [service.stats() for service in services]
    finally:
        for service in services:
            service.stop()
    for result, stats in zip(results, counted, strict=True):
        assert result.error is None
        assert result.report is not None
        total = result.report.costs["total"]
        tallies = list(stats.by_kind.values())
        assert total["calls"] == sum(tally.calls for tally in tallies) > 0
        assert total["prompt_tokens"] == sum(tally.prompt_tokens for tally in tallies)
        assert total["completion_tokens"] == sum(tally.completion_tokens for tally in tallies)
    everything = whole.snapshot().total
    assert everything.calls == sum(tally.calls for stats in counted for tally in stats.by_kind.values())
    assert everything.tokens == sum(
        tally.prompt_tokens + tally.completion_tokens for stats in counted for tally in stats.by_kind.values()
    )


@pytest.mark.parametrize("more", [{"artifact": "playbook"}, {"executor": "asyncio", "max_metric_calls": 40}])
def test_playbooks_and_event_loops_share_a_pool_too(more: dict[str, Any]) -> None:
    sizes = {"train": 12, "validation": 6, "heldout": 6}
    data = load_benchmark("formula-mini", task="compute", formulas=4, **sizes)
    train, validation, heldout = (list(split.examples) for split in data.splits)
    with SimulatedService(SimulatedConfig(time_scale=0.0), SimulatedTask.from_benchmark(data)) as service:
        lm = service.lm()
        optimizer = Combee(
            data.metric, reflection_lm=lm, reflection_minibatch_size=6, num_threads=4, probe=False, **more
        )
        with dspy.context(lm=lm):
            program = dspy.Predict("question -> answer")
            alone = optimizer.compile(program, trainset=train, valset=validation, heldout=heldout)
            tasks = [Task(name, program, train, validation, heldout) for name in ("one", "other")]
            results = compile_many(tasks, combee=optimizer, shape="hybrid", at_once=2)
    for result in results:
        assert result.error is None
        assert result.report is not None
        assert result.program is not None
        assert result.program.dump_state() == alone.dump_state()
        assert result.report.heldout == alone.combee_report.heldout


def test_runs_are_recorded_under_one_parent_and_autologging_changes_nothing(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    tracker = MLflowTracker("several", uri, registry=False, traces=0, spool=str(tmp_path / "journals"))
    optimizer = Combee(
        world.metric,
        max_metric_calls=60,
        reflection_lm=world.proposer_lm,
        reflection_minibatch_size=6,
        num_threads=4,
        probe=False,
        tracker=tracker,
    )
    tasks = [
        Task(
            f"task {n}", world.student(), world.examples(12, start=1_000 * n), world.examples(6, start=1_000 * n + 500)
        )
        for n in range(2)
    ]
    plain = [
        Combee(
            **{"metric": optimizer.metric_fn, "reflection_lm": world.proposer_lm, "max_metric_calls": 60}
            | {"reflection_minibatch_size": 6, "num_threads": 4, "probe": False}
        ).compile(task.student, trainset=list(task.trainset), valset=list(task.valset or ()))
        for task in tasks
    ]
    try:
        mlflow.dspy.autolog()
        results = compile_many(tasks, combee=optimizer, shape="hybrid", at_once=2, name="two tasks")
        dspy_callbacks = list(dspy.settings.callbacks)
    finally:
        mlflow.dspy.autolog(disable=True)
        mlflow.set_tracking_uri(None)
    assert [result.program.dump_state() for result in results] == [program.dump_state() for program in plain]
    # The recorders of the runs are gone, the user's own callbacks are where they were.
    assert not any(is_recorder(callback) for callback in dspy_callbacks)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("several")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"two tasks", "task 0", "task 1"}
    parent = runs["two tasks"].info.run_id
    assert {runs[f"task {n}"].data.tags["mlflow.parentRunId"] for n in range(2)} == {parent}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for number, result in enumerate(results):
        assert result.report is not None
        # Each record has its own run's figures.
        metrics = runs[f"task {number}"].data.metrics
        assert metrics["val/best"] == pytest.approx(result.report.best_score)
