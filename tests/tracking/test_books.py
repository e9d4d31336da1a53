"""The books agree with the service, hold no key, and leave a user's own MLflow alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from combee_dspy.bench.tracking_agree import agree
from combee_dspy.lms.simulated import SimulatedConfig, SimulatedService
from combee_dspy.tracking import MLflowTracker, entries_of, row_of

mlflow = pytest.importorskip("mlflow")

Store = tuple[str, Path]


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache() -> Iterator[None]:
    before = dspy.cache
    yield
    dspy.cache = before


@pytest.fixture
def experiment(store: Store, client: Any, request: pytest.FixtureRequest) -> str:
    name = f"books {request.node.name}"
    client.create_experiment(name, artifact_location=(store[1] / "artifacts").as_uri())
    return name


@pytest.mark.usefixtures("cache")
def test_ledger_journal_table_and_service_agree_to_the_call_and_the_token(store: Store, tmp_path: Path) -> None:
    found = agree(700, tmp_path / "journal", threads=64, tracking_uri=store[0])
    assert found.holds, found
    assert found.table is not None
    assert found.table.rollouts == found.told >= 700
    # It went through what there is to go through.
    assert found.memo_hits > 50
    assert found.errors > 10
    assert (found.ledger.cached or 0) > 100
    assert (found.ledger.failed or 0) > 0


def _metric(judge: dspy.LM) -> Any:
    asked = dspy.Predict("question -> verdict")

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        with dspy.context(lm=judge):
            asked(question=gold.question)
        if gold.question.endswith("3"):
            raise ValueError(f"401 wrong key {KEYS['judge']} for {KEYS['proposer']}, {KEYS['configured']}")
        return dspy.Prediction(score=0.0, feedback=f"use {KEYS['environment']} or {KEYS['task']}")

    return metric


KEYS = {
    "environment": "dummy-from-the-environment",
    "task": "dummy-of-the-task-lm",
    "proposer": "dummy-of-the-proposer-lm",
    "judge": "dummy-of-the-judge-lm",
    "configured": "dummy-from-dspy-configure",
}


def _rows(count: int, start: int = 0) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"What is {number}", answer="x").with_inputs("question")
        for number in range(start, start + count)
    ]


def _compile(service: SimulatedService, tracker: MLflowTracker | None, log_dir: Path | None, **options: Any) -> Any:
    lm = service.lm(api_key=KEYS["task"])
    with dspy.context(lm=lm, api_key=KEYS["configured"]):
        combee = Combee(
            _metric(dspy.LM("openai/judge", api_base=service.api_base, api_key=KEYS["judge"], cache=False)),
            reflection_lm=service.lm(api_key=KEYS["proposer"]),
            reflection_minibatch_size=3,
            max_metric_calls=30,
            log_dir=None if log_dir is None else str(log_dir),
            tracker=tracker,
            progress=False,
            **options,
        )
        return combee.compile(dspy.Predict("question -> answer"), trainset=_rows(8), valset=_rows(4, 10))


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with SimulatedService(SimulatedConfig(time_scale=0.0)) as running:
        yield running


def test_no_key_is_in_any_file_that_a_run_writes(
    service: SimulatedService, store: Store, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEYS["environment"])
    _compile(service, MLflowTracker(experiment, store[0]), tmp_path / "log")
    journal = [row_of(entry.data) for entry in entries_of(tmp_path / "log" / "journal") if entry.kind == "rollout"]
    # The texts that held the keys are there.
    assert any("401 wrong key [redacted] for [redacted], [redacted]" in row.error for row in journal)
    assert any(row.feedback == "use [redacted] or [redacted]" for row in journal)
    files = [path for folder in (tmp_path, store[1]) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert "gepa_state.bin" in {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [name for name, key in KEYS.items() if key.encode() in content], path


def test_autolog_beside_it_neither_breaks_nor_doubles(
    service: SimulatedService, store: Store, experiment: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    callbacks, track_usage = list(dspy.settings.callbacks), dspy.settings.track_usage
    mlflow.set_experiment(experiment)
    mlflow.dspy.autolog(log_compiles=True, silent=True)
    try:
        before = service.stats()
        program = _compile(service, MLflowTracker(), None)
    finally:
        mlflow.dspy.autolog(disable=True, silent=True)
        dspy.configure(callbacks=callbacks, track_usage=track_usage)
    after = service.stats()
    total = program.combee_report.costs["total"]
    assert total["calls"] - total["cached"] == after.calls - before.calls
    assert total["prompt_tokens"] > 0
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    assert run.data.params["strategy/aggregator"]
    traces = client.search_traces(locations=[found.experiment_id], max_results=500)
    assert all("combee.rollout_id" in trace.info.tags for trace in traces)
    assert len(traces) <= 20


def test_without_a_tracker_and_a_log_dir_nothing_is_written(service: SimulatedService, tmp_path: Path) -> None:
    _compile(service, None, None)
    assert not list(tmp_path.iterdir())


def test_gpu_seconds_are_recorded_by_role_where_some_are_declared(service: SimulatedService, tmp_path: Path) -> None:
    # A probe's call is nobody's rollout.
    program = _compile(service, None, tmp_path / "log", probe=False, gpus={"task": 2})
    by_role = program.combee_report.costs["by_role"]
    assert by_role["task"]["gpu_seconds"] > 0
    assert by_role["proposer"]["gpu_seconds"] is None
    rows = [row_of(entry.data) for entry in entries_of(tmp_path / "log" / "journal") if entry.kind == "rollout"]
    assert sum(row.gpu_seconds or 0.0 for row in rows) == pytest.approx(by_role["task"]["gpu_seconds"])
