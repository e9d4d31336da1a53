from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from combee_dspy import events
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.registry import Spec
from combee_dspy.tracking import EventBus, Journal, MLflowTracker, prompt_name
from combee_dspy.tracking._mlflow import MLflowHook
from combee_dspy.tracking._store import Place

mlflow = pytest.importorskip("mlflow")

Story = Callable[[], list[events.Event]]
Store = tuple[str, Path]
KEYS = {"OPENAI_API_KEY": "dummy-key-in-the-environment", "SOME_TOKEN": "another-dummy-token-value"}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Whatever MLflow would write beside its store must not land in the checkout.
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def done(store: Store, story: Story, tmp_path_factory: pytest.TempPathFactory) -> MLflowHook:
    """A whole run, recorded once for the tests that read it."""
    uri, folder = store
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        for name, value in KEYS.items():
            patch.setenv(name, value)
        client = mlflow.MlflowClient(tracking_uri=uri)
        client.create_experiment("room", artifact_location=(folder / "artifacts").as_uri())
        hook = MLflowTracker("room", uri).open()
        with EventBus([hook]) as bus:
            for event in story():
                bus.emit(event)
            leak = f"401 {KEYS['OPENAI_API_KEY']} and {KEYS['SOME_TOKEN']}"
            bus.emit(events.ErrorRaised(where="lm", error=leak, fatal=False))
        assert [path.name for path in Path.cwd().iterdir()] == ["combee_runs"], "MLflow wrote beside its store"
        assert [path.name for path in Path("combee_runs").iterdir()] == ["journals"]
    return hook


def _text(client: Any, run_id: str, path: str, tmp_path: Path) -> str:
    return Path(client.download_artifacts(run_id, path, str(tmp_path))).read_text(encoding="utf-8")


def test_params_and_name_and_status(done: MLflowHook, client: Any) -> None:
    run = client.get_run(done.run_id)
    assert run.info.run_name == "formula-mini/route 24-3-5 seed 7"
    assert run.info.status == "FINISHED"
    assert run.data.params["run/seed"] == "7"
    assert run.data.params["model/task"] == "embedded/smollm2"
    assert json.loads(run.data.params["strategy/aggregator"])["name"] == "parallel-scan"
    assert run.data.tags["mlflow.note.content"].startswith("**Held-out 0.400 → 0.800**")
    assert run.data.tags["combee.stop_reason"] == "the budget of 30 rollouts is spent."
    assert run.data.tags["combee.fit_for_claims"] == "false"
    # Who and with what, without a path.
    assert run.data.tags["mlflow.user"] == getpass.getuser()
    assert run.data.tags["mlflow.source.name"]
    assert not {"/", "\\"} & set(run.data.tags["mlflow.source.name"])


def test_metrics_have_one_value_a_step(done: MLflowHook, client: Any) -> None:
    names = client.get_run(done.run_id).data.metrics
    history = {name: [(m.step, m.value) for m in client.get_metric_history(done.run_id, name)] for name in names}
    assert history["val/best"] == [(0, pytest.approx(1 / 3)), (1, 0.6), (2, 0.7)]
    assert history["tokens/task"] == [(1, 1050), (2, 2100)]
    assert history["batch/size"] == [(1, 4), (2, 4)]
    assert history["heldout/after"] == [(2, 0.8)]
    # What the held-out set cost comes after the last iteration has closed.
    assert history["total/tokens"] == [(2, 5520)]
    assert history["total/dollars"] == [(2, 0.75)]
    for name, points in history.items():
        assert len({step for step, _ in points}) == len(points), name


def test_the_table_of_telling_rollouts_opens(done: MLflowHook, client: Any, tmp_path: Path) -> None:
    tags = client.get_run(done.run_id).data.tags
    assert json.loads(tags["mlflow.loggedArtifacts"]) == [{"path": "telling_rollouts.json", "type": "table"}]
    frame = client._read_from_file(client.download_artifacts(done.run_id, "telling_rollouts.json", str(tmp_path)))
    assert {"worst", "best", "error"} <= set(frame["why"])
    assert set(frame[frame["why"] == "error"]["error_class"]) == {"ValueError"}
    assert tags["combee.rollouts"] == "30"


def test_telling_rollouts_have_traces(done: MLflowHook, client: Any) -> None:
    traces = client.search_traces(locations=[done.place.experiment_id], run_id=done.run_id, max_results=100)
    assert 3 <= len(traces) <= 20
    ids = {trace.info.tags["combee.rollout_id"] for trace in traces}
    assert len(ids) == len(traces)
    assert all(name.startswith(done.journal.run_id) for name in ids)
    assert {trace.data.spans[0].inputs["question"] for trace in traces} <= {f"question {index}" for index in range(5)}


def test_the_machines_load_is_recorded_on_request_alone(
    monkeypatch: pytest.MonkeyPatch, store: Store, story: Story
) -> None:
    heard: list[str] = []

    class Monitor:
        def __init__(self, run_id: str, tracking_uri: str) -> None:
            self.place = f"{run_id} {tracking_uri}"

        def start(self) -> None:
            heard.append(f"start {self.place}")

        def finish(self) -> None:
            heard.append(f"finish {self.place}")

    module = "mlflow.system_metrics.system_metrics_monitor"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(SystemMetricsMonitor=Monitor))
    for wanted in (False, True):
        hook = MLflowTracker("load", store[0], registry=False, traces=0, system_metrics=wanted).open()
        with EventBus([hook]) as bus:
            bus.emit(story()[0])
    assert heard == [f"start {hook.run_id} {store[0]}", f"finish {hook.run_id} {store[0]}"]


def test_a_machine_whose_load_cannot_be_read_is_recorded_without(
    monkeypatch: pytest.MonkeyPatch, store: Store, story: Story, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def monitor(run_id: str, tracking_uri: str) -> None:
        raise ImportError("no psutil here")

    module = "mlflow.system_metrics.system_metrics_monitor"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(SystemMetricsMonitor=monitor))
    hook = MLflowTracker("load", store[0], registry=False, traces=0, system_metrics=True).open()
    with EventBus([hook]) as bus:
        bus.emit(story()[0])
    assert "load is not recorded: no psutil here. Install it with `pip install combee-dspy[mlflow]`." in caplog.text
    assert client.get_run(hook.run_id).data.params["size/train"] == "24"


def test_splits_are_datasets_with_our_own_hash(done: MLflowHook, client: Any) -> None:
    (found,) = client.get_run(done.run_id).inputs.dataset_inputs
    assert found.dataset.name == "train"
    assert json.loads(found.dataset.profile) == {"num_rows": 24, "sha256": "a" * 64}


def test_the_parquet_parts_hold_every_rollout_once(done: MLflowHook, client: Any, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = Path(client.download_artifacts(done.run_id, "rollouts", str(tmp_path)))
    parts = sorted(folder.iterdir())
    # The seed's validation, and both iterations together: they ended within the same second.
    assert len(parts) == 2
    assert all(parquet.ParquetFile(part).metadata.row_group(0).column(0).compression == "ZSTD" for part in parts)
    ids = [name for part in parts for name in parquet.read_table(part)["rollout_id"].to_pylist()]
    assert len(ids) == len(set(ids)) == 30


def test_prompts_are_files_and_versions(done: MLflowHook, client: Any, tmp_path: Path, hostile: str) -> None:
    name = "steps-5b-0-5d-.call.txt"
    assert _text(client, done.run_id, f"prompts/seed/{name}", tmp_path) == "Answer."
    assert _text(client, done.run_id, f"prompts/iteration-0001/{name}", tmp_path) == f"Answer. {hostile} v1"
    assert _text(client, done.run_id, f"prompts/best/{name}", tmp_path) == f"Answer. {hostile} v2"
    best = json.loads(_text(client, done.run_id, "best_candidate.json", tmp_path))
    assert best == {"steps[0].call": f"Answer. {hostile} v2", "self": "Choose."}
    registered = client.get_prompt_version(prompt_name("room", "steps[0].call"), 3)
    assert registered.template == f"Answer. {hostile} v2"
    assert registered.tags["combee.component"] == "steps[0].call"
    assert registered.tags["combee.run_id"] == done.run_id
    links = json.loads(client.get_run(done.run_id).data.tags["mlflow.linkedPrompts"])
    # A text that did not change is no new version.
    assert {(link["name"], link["version"]) for link in links} == {
        (prompt_name("room", "steps[0].call"), "3"),
        (prompt_name("room", "self"), "1"),
    }


def test_decisions_and_errors_are_kept(done: MLflowHook, client: Any, tmp_path: Path) -> None:
    decisions = json.loads(_text(client, done.run_id, "batch_decisions.json", tmp_path))
    assert [(one["iteration"], one["size"], one["clamps"][0]["name"]) for one in decisions] == [
        (1, 4, "epoch-updates"),
        (2, 4, "epoch-updates"),
    ]
    assert "gepa: RuntimeError: odd" in _text(client, done.run_id, "errors.txt", tmp_path)


def test_no_key_is_in_any_file_of_the_store(done: MLflowHook, store: Store) -> None:
    secrets = [*KEYS.values(), "sk-abcdefghijklmnop1234", "hush-hush"]
    files = [path for folder in (store[1], done.journal.folder) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert done.journal.file in files
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], path


def test_the_way_to_the_run_is_a_command(done: MLflowHook, store: Store) -> None:
    assert done.where == f"mlflow ui --backend-store-uri {store[0]}  # run {done.run_id}"


def test_an_active_run_is_joined_and_left_running(
    monkeypatch: pytest.MonkeyPatch, store: Store, story: Story, client: Any
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    with mlflow.start_run(run_name="mine") as run:
        mlflow.log_param("run/seed", "theirs")
        mlflow.set_tag("mlflow.note.content", "my own words")
        hooks = [MLflowTracker("elsewhere", registry=False).open() for _ in range(2)]
        for hook in hooks:
            with EventBus([hook]) as bus:
                for event in story():
                    bus.emit(event)
        assert mlflow.active_run().info.run_id == run.info.run_id
        assert client.get_run(run.info.run_id).info.status == "RUNNING"
    joined, nested = (client.get_run(hook.run_id) for hook in hooks)
    assert joined.info.run_id == run.info.run_id
    assert joined.info.run_name == "mine"
    assert joined.data.params["run/seed"] == "theirs"
    assert joined.data.params["size/train"] == "24"
    assert joined.data.tags["mlflow.note.content"] == "my own words"
    # A second compile has metrics at the same steps: it gets a run of its own inside.
    assert nested.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert nested.info.status == "FINISHED"
    assert client.get_experiment_by_name("elsewhere") is None


@pytest.mark.parametrize("kind", ["joined", "nested", "second compile"])
@pytest.mark.parametrize("then", ["the same is active", "another is active", "none is active"])
def test_a_resumed_run_leaves_the_one_that_was_active_as_it_is(
    monkeypatch: pytest.MonkeyPatch, store: Store, story: Story, client: Any, tmp_path: Path, kind: str, then: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])

    def compile_(heard: list[events.Event], journal_folder: Path = tmp_path / "journal") -> str:
        journal = Journal(journal_folder)
        hook = MLflowTracker(registry=False, traces=0, nested=kind == "nested").open(journal)
        with EventBus([hook], journal=journal) as bus:
            for event in heard:
                bus.emit(event)
        return hook.run_id

    run = mlflow.start_run(run_name="mine", description="my own words")
    if kind == "second compile":
        assert compile_(story()[:1], tmp_path / "first") == run.info.run_id
    recorded = compile_(story()[:12])
    assert (recorded == run.info.run_id) == (kind == "joined")
    other = run
    if then != "the same is active":
        mlflow.end_run("KILLED")
    if then == "another is active":
        other = mlflow.start_run(run_name="another")
    for _ in range(2):
        assert compile_([story()[0], *story()[12:]]) == recorded
    mlflow.end_run("KILLED")
    found = client.get_run(run.info.run_id)
    assert (found.info.run_name, found.info.status) == ("mine", "KILLED")
    assert found.data.tags["mlflow.note.content"] == "my own words"
    assert client.get_run(recorded).data.metrics["val/best"] == 0.7
    if other is not run:
        assert not client.get_run(other.info.run_id).data.params
    inside = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert [one.info.run_id for one in inside] == ([] if kind == "joined" else [recorded])


def test_a_nested_run_is_made_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, store: Store, story: Story, client: Any
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    with mlflow.start_run(run_name="mine") as run:
        hook = MLflowTracker(nested=True, registry=False, traces=0).open()
        with EventBus([hook]) as bus:
            for event in story()[:12]:
                bus.emit(event)
    nested = client.get_run(hook.run_id)
    assert nested.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert nested.info.run_name == "formula-mini/route 24-3-5 seed 7"
    # Nothing of it is in the user's own run.
    assert not client.get_run(run.info.run_id).data.params


def test_a_job_of_several_compiles_has_a_run_each_below_its_own(store: Store, story: Story, client: Any) -> None:
    def compiles(tracker: MLflowTracker) -> None:
        with EventBus([tracker.open()]) as bus:
            for event in story()[:6]:
                bus.emit(event)

    given = MLflowTracker("several", store[0], registry=False, traces=0)
    with given.group("two tasks, seed 7", "**Both improved.**") as tracker:
        # Each in a thread of its own, where no run is active.
        threads = [threading.Thread(target=compiles, args=(tracker,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Spec.of(tracker).build().parent == tracker.parent
    parent = client.get_run(tracker.parent)
    assert (parent.info.run_name, parent.info.status) == ("two tasks, seed 7", "FINISHED")
    assert parent.data.tags["mlflow.note.content"] == "**Both improved.**"
    runs = client.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{tracker.parent}'")
    assert len(runs) == 2
    assert {run.data.params["run/seed"] for run in runs} == {"7"}

    def fail() -> None:
        with given.group("one that fails") as failing:
            found.append(failing.parent)
            raise ValueError("no data")

    found: list[Any] = []
    with pytest.raises(ValueError, match="no data"):
        fail()
    assert client.get_run(found[0]).info.status == "FAILED"


def test_a_run_without_an_end_is_killed_and_a_fatal_one_failed(store: Store, story: Story, client: Any) -> None:
    statuses = []
    for last in (None, events.ErrorRaised(where="gepa", error="OSError: disk", fatal=True)):
        hook = MLflowTracker("room", store[0], "named", registry=False).open()
        with EventBus([hook]) as bus:
            for event in story()[:12]:
                bus.emit(event)
            if last is not None:
                bus.emit(last)
        run = client.get_run(hook.run_id)
        statuses.append(run.info.status)
        assert run.info.run_name == "named"
        assert run.data.tags["combee.rollouts"] == "7"
    assert statuses == ["KILLED", "FAILED"]


def test_a_dead_server_is_found_before_the_run() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    with pytest.raises(ArgumentValueError) as caught:
        MLflowTracker(tracking_uri=f"http://ann:geheim@127.0.0.1:{port}").open()
    assert caught.value.argument == "tracking_uri"
    assert "geheim" not in str(caught.value)
    # What the user has set is left alone; what they have not is set so that nothing hangs.
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_deleted_experiment_is_named(store: Store, client: Any) -> None:
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(ArgumentValueError, match="is deleted") as caught:
        MLflowTracker("gone", store[0]).open()
    assert caught.value.argument == "experiment"


def test_the_default_store_is_a_file_under_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path
) -> None:
    from combee_dspy.tracking import _store

    made: list[tuple[str, str | None]] = []

    def record(_: Any, uri: str, artifacts: str | None, *rest: Any) -> Place:
        made.append((uri, artifacts))
        return Place(None, uri, "run", "1")

    monkeypatch.setattr(_store, "_create", record)
    assert not mlflow.is_tracking_uri_set(), "another test left a tracking URI behind"
    _store.connect("room", None, None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    _store.connect("room", None, None)
    assert made == [
        (f"sqlite:///{tmp_path}/combee_runs/mlflow.db", (tmp_path / "combee_runs" / "artifacts").as_uri()),
        (store[0], None),
    ]


def test_a_tracker_is_plain_data() -> None:
    tracker = MLflowTracker("mine", registry=False)
    assert Spec.from_dict(Spec.of(tracker).to_dict()).build() == tracker


def test_a_missing_mlflow_is_said_with_the_command() -> None:
    code = (
        "import sys; sys.modules['mlflow'] = None\n"
        "from combee_dspy.tracking import MLflowTracker\n"
        "try:\n    MLflowTracker().open()\n"
        "except ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert "pip install combee-dspy[mlflow]" in done.stdout
