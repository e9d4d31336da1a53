"""MLflow gets each row exactly once, whoever dies in between, and no key."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import dspy
import pytest

from combee_dspy.exceptions import ArgumentValueError, JournalHeldError, MissingDistributionError
from combee_dspy.journal import Journal, Reader, RunHistory, journal_file
from combee_dspy.traces import Trace
from combee_dspy.tracking import MLflowTracker, _mlflow_store, replay, rollouts
from combee_dspy.tracking._metrics import description
from combee_dspy.tracking._mlflow_traces import TraceRecorder
from combee_dspy.tracking._params import MAX_PARAM, params
from tests.slow import slow_but
from tests.tracking.journals import KEY, SWAPPED, TEXTS, Story, followed
from tests.worlds import examples

mlflow = pytest.importorskip("mlflow")
pq = pytest.importorskip("pyarrow.parquet")


class Killed(BaseException):
    """The process is gone."""


class Store:
    """What a store keeps, by MlflowClient's own methods. It may be down, or the process may die at
    any write.
    """

    def __init__(self):
        self.experiments, self.runs, self.writes = [], {}, 0
        self.dies_at, self.down = None, False
        self.models, self.programs, self.traces = [], [], []
        self.tracking_uri = ""

    def client(self, tracking_uri=None):
        self._write(lambda: None)
        return self

    def _write(self, work):
        if self.down:
            raise mlflow.exceptions.MlflowException(f"Connection refused, Bearer {KEY}")
        self.writes += 1
        if self.writes == self.dies_at:
            raise Killed
        return work()

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name):
        self._write(lambda: self.experiments.append(name))
        return name

    def search_runs(self, experiments, condition, max_results):
        wanted = condition.split("'")[1]
        here = [run for run in self.runs.values() if run.info.experiment in experiments]
        return [run for run in here if run.data.tags["mlflow.combee.run"] == wanted][:max_results]

    def create_run(self, experiment, begun, tags, name):
        def make():
            number = f"run{len(self.runs)}"
            info = SimpleNamespace(
                run_id=number, status="RUNNING", name=name, experiment=experiment
            )
            data = SimpleNamespace(tags=dict(tags), params={}, metrics=[], files={})
            self.runs[number] = SimpleNamespace(info=info, data=data)
            return self.runs[number]

        return self._write(make)

    def log_batch(self, run, metrics=(), params=(), tags=()):
        def keep():
            data = self.runs[run].data
            for metric in metrics:
                point = (metric.key, metric.step, metric.timestamp, metric.value)
                if point not in data.metrics:  # as a database's key does
                    data.metrics.append(point)
            data.params.update({param.key: param.value for param in params})
            data.tags.update({tag.key: tag.value for tag in tags})

        self._write(keep)

    def log_artifact(self, run, path, folder):
        content = Path(path).read_bytes()
        self._write(
            lambda: self.runs[run].data.files.update({f"{folder}/{Path(path).name}": content})
        )

    def log_text(self, run, text, name):
        self._write(lambda: self.runs[run].data.files.update({name: text.encode()}))

    def log_inputs(self, run, datasets):
        names = [dataset.dataset.name for dataset in datasets]
        self._write(lambda: setattr(self.runs[run], "datasets", names))

    def get_run(self, run):
        outputs = SimpleNamespace(model_outputs=self.models)
        return SimpleNamespace(
            info=SimpleNamespace(experiment_id="home"), data=self.runs[run].data, outputs=outputs
        )

    def create_logged_model(self, home, name, run, tags, model_type):
        return self._write(lambda: SimpleNamespace(model_id=f"m-{name}", artifact_location="…"))

    def log_model_artifact(self, model, path):
        content = Path(path).read_bytes()
        self._write(lambda: self.programs.append(content))

    def finalize_logged_model(self, model, status):
        self._write(lambda: None)

    def log_outputs(self, run, models):
        self._write(lambda: self.models.extend(models))

    def search_traces(self, locations, run_id, max_results, include_spans):
        return [
            SimpleNamespace(info=SimpleNamespace(trace_id=trace)) for trace in sorted(self.traces)
        ]

    def record(self, recorder, trace):
        self._write(lambda: self.traces.append(recorder.name_of(trace)))

    def set_tag(self, run, name, value):
        self._write(lambda: self.runs[run].data.tags.update({name: value}))

    def update_run(self, run, status):
        self._write(lambda: setattr(self.runs[run].info, "status", status))

    def set_terminated(self, run, status, end_time):
        self._write(lambda: setattr(self.runs[run].info, "status", status))

    def only(self):
        (run,) = self.runs.values()
        return run

    def rows(self, folder="rollouts"):
        files = self.only().data.files
        tables = [
            pq.read_table(io.BytesIO(files[name]))
            for name in sorted(files)
            if name.startswith(f"{folder}/")
        ]
        return [row for table in tables for row in table.to_pylist()]

    def metrics(self):
        return sorted(self.only().data.metrics)


@pytest.fixture
def store(monkeypatch):
    made = Store()
    monkeypatch.setattr(mlflow, "MlflowClient", made.client)
    monkeypatch.setattr(_mlflow_store, "make_store", lambda uri: None)
    monkeypatch.setattr(
        TraceRecorder, "record", lambda recorder, trace: made.record(recorder, trace)
    )
    return made


def test_a_whole_run_is_recorded(tmp_path, store):
    place = Story(tmp_path).whole()
    (where,) = replay(place)
    assert where.startswith("mlflow ui --backend-store-uri")
    run = store.only()
    assert (run.info.status, run.info.name) == ("FINISHED", "Sort, union, 8 rows")
    assert run.datasets == ["train"]
    assert run.data.params["size/train"] == "8"
    assert run.data.params["model/task"] == "openai/simulated"
    assert run.data.params["digest/train"] == "a" * 64
    assert [row["id"] for row in store.rows()] == [row["id"] for row in rollouts(place, limit=None)]
    assert run.data.params["evaluator"] == "tests.metric #0123456789ab"
    assert {row["evaluator"] for row in store.rows()} == {"tests.metric #0123456789ab"}
    by_name = {(name, step): value for name, step, _, value in store.metrics()}
    assert by_name["score/best", 0] == 0.5
    assert by_name["score/best", 1] == 1.0
    assert by_name["score/train", 1] == 0.5
    assert by_name["tokens/proposer", 1] == 240
    assert by_name["scan/kept", 0] == 0.5
    assert by_name["score/heldout", 1] - by_name["score/heldout_before", 1] == 0.25
    assert by_name["score/chosen", 1] == 1.0
    assert by_name["cost/rollouts", 1] == 18
    by_role = ("lessons/", "tokens/", "dollars/")
    assert len({name for name, _ in by_name if not name.startswith(by_role)}) <= 15
    assert run.data.files["prompts/predict.txt"].decode() == TEXTS[SWAPPED]["predict"]
    assert b"<!doctype html>" in run.data.files["report.html"]
    assert run.data.tags["mlflow.note.content"].startswith(
        "Held-out not shown to be better, n = 4: 0.500 → 0.750 (+0.250"
    )
    assert run.data.tags["combee.heldout"] == "not shown to be better, n = 4"
    assert "simulated" in run.data.tags["mlflow.note.content"]
    shown = {name for name in run.data.tags if not name.startswith("mlflow.")}
    assert shown == {"combee.heldout"}, "how far a run has come is nobody's label"


def test_a_recorded_rollout_is_a_row_with_its_origin_and_no_cost(tmp_path, store, world):
    answered = {"prompt": "p1", "model": "m1", "time": 1_700_000_000.0}
    traces = [
        Trace("t1", {"question": "word for ant?"}, {"answer": "?"}, score=0.0, **answered),
        Trace("t2", {"question": "word for bee?"}, {"answer": "?"}, feedback="Wrong."),
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        world.combee(log_dir=tmp_path).compile(dspy.Predict("question -> answer"), traces=traces)
    replay(tmp_path)
    recorded = {row["example"]: row for row in store.rows()}
    assert recorded.keys() == {"t1", "t2"}
    assert json.loads(recorded["t1"]["origin"]) == {"trace": "t1", **answered}
    assert recorded["t1"]["task_model"] == "m1"
    assert {(row["calls"], row["dollars"]) for row in recorded.values()} == {(0, 0.0)}
    run = store.only()
    assert run.datasets == ["traces"]
    assert run.info.name == "Predict, reference-scan, 2 traces"
    assert b"2 recorded rollouts were read, and none was bought" in run.data.files["report.html"]
    metrics = {(name, step): value for name, step, _, value in store.metrics()}
    assert {value for (name, _), value in metrics.items() if name == "cost/rollouts"} == {0}


def test_each_row_says_who_was_asked_and_what_it_cost_by_role(tmp_path, store):
    replay(Story(tmp_path).whole())
    (first, *_) = store.rows()
    asked = "task_model", "proposer_model", "evaluator", "split", "score"
    assert [first[name] for name in asked] == [
        "openai/simulated",
        "openai/simulated",
        "tests.metric #0123456789ab",
        "validation",
        1.0,
    ]
    assert (first["tokens"], first["tokens_task"], first["tokens_evaluator"]) == (15, 15, 0)
    assert {"prompt_hash", "seconds", "gpu_seconds", "dollars"} <= set(first)
    calls = store.rows("calls")
    assert [call["purpose"] for call in calls if call["role"] == "proposer"] == ["AddLessons"] * 2
    assert sum(call["dollars"] or 0 for call in calls) == pytest.approx(0.026)
    tokens = [call["prompt_tokens"] + call["completion_tokens"] for call in calls]
    by_name = {(name, step): value for name, step, _, value in store.metrics()}
    last = sum(by_name[f"tokens/{role}", 2] for role in ("task", "proposer"))
    assert last == sum(tokens), "the held-out set is in the sums"


def test_a_model_without_a_price_takes_no_dollars_from_the_others(tmp_path, store):
    replay(Story(tmp_path).whole())
    by_name = {(name, step): value for name, step, _, value in store.metrics()}
    assert by_name["dollars/task", 1] == by_name["cost/dollars", 1] == pytest.approx(0.018)
    assert by_name["dollars/task", 2] == by_name["cost/dollars", 2] == pytest.approx(0.026)
    assert ("dollars/proposer", 1) not in by_name
    assert by_name["cost/unpriced_calls", 1] == 2
    assert by_name["cost/heldout_rollouts", 1] == 8
    assert "$0.0260 and 2 calls without a price" in store.only().data.tags["mlflow.note.content"]


def test_each_setting_is_a_parameter_of_its_own_name():
    about = {
        "program": "Sort",
        "specs": {
            "aggregator": {"kind": "aggregator", "name": "union", "params": {"copies": 2}},
            "operators": [{"kind": "operator", "name": "insert", "params": {"max_tokens": 9}}],
        },
        "settings": {"num_threads": 8, "guards.max_tokens": None},
        "search": {"staleness": 1},
        "sizes": {"train": 8},
    }
    result = params("main", 7, about)
    assert result == {
        "name": "main",
        "seed": "7",
        "num_threads": "8",
        "guards.max_tokens": "null",
        "aggregator": "union",
        "aggregator.copies": "2",
        "operators": "insert",
        "operators.insert.max_tokens": "9",
        "search.staleness": "1",
        "program": "Sort",
        "size/train": "8",
    }


def test_doing_it_twice_changes_nothing(tmp_path, store):
    place = Story(tmp_path).whole()
    replay(place)
    writes, before = store.writes, store.metrics()
    replay(place)
    assert store.metrics() == before
    assert store.writes == writes + 1  # the client alone


def test_the_book_and_every_decision_about_it_are_artifacts(tmp_path, store):
    replay(Story(tmp_path).whole())
    files = store.only().data.files
    book = json.loads(files["books/predict.json"])
    assert book["component"] == "predict"
    assert [
        (lesson["id"], lesson["state"], lesson["rule"], lesson["rivals"])
        for lesson in book["lessons"]
    ] == [
        ("a1", "served", "", ["d4"]),
        ("c3", "served", "a1", []),
        ("d4", "retired", "", ["a1"]),
    ]
    names = {"id", "text", "state", "reason", "sources", "born", "rule", "rivals"}
    assert all(set(one) == names for one in book["lessons"])
    assert book["lessons"][0]["sources"] == ["r1", "r2"]
    table = json.loads(files["decisions.json"])
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [
        (row["update"], row["change"], row["lesson"], row["before"], row["after"]) for row in rows
    ] == [
        (0, "added", "a1", "", "served"),
        (0, "contradicted", "a1", "", "served"),
        (0, "added", "b2", "", "served"),
        (0, "added", "d4", "", "served"),
        (0, "contradicted", "d4", "", "served"),
        (1, "added", "c3", "", "waiting"),
        (1, "exception", "c3", "", "waiting"),
        (1, "state", "d4", "served", "retired"),
        (1, "united", "b2", "served", "served"),
        (1, "void", "", "", ""),
        (1, "tested", "c3", "waiting", "served"),
        (1, "state", "c3", "waiting", "served"),
    ]
    assert rows[7]["why"] == "9 rows are right without it"
    assert rows[8]["others"] == ["a1"]
    assert rows[9]["why"].startswith("2 unusable: Unite")
    assert (rows[10]["rows"], rows[10]["wins"], rows[10]["losses"], rows[10]["accepted"]) == (
        4,
        2,
        0,
        True,
    )
    assert "2 better, 0 worse of 4 validation rows, accepted" in rows[10]["why"]
    points = {
        (name, step): value
        for name, step, _, value in store.metrics()
        if name.startswith("lessons/")
    }
    assert [points["lessons/served", step] for step in range(3)] == [
        3,
        1,
        2,
    ], "the last is after the tests"
    assert [points["lessons/waiting", step] for step in range(3)] == [0, 1, 0]
    assert [points["lessons/retired", step] for step in range(3)] == [0, 1, 1]
    assert [points["lessons/void", step] for step in range(3)] == [0, 2, 2]


def test_a_run_without_a_book_has_no_artifact_of_it(tmp_path, store):
    replay(Story(tmp_path).write("begin"))
    data = store.only().data
    assert not [name for name in data.files if name.startswith(("books/", "decisions"))]
    assert not [name for name, *_ in data.metrics if name.startswith("lessons/")]


def test_a_run_is_followed_update_by_update(tmp_path, store):
    story = Story(tmp_path)
    path = journal_file(story.write("begin"))
    with Reader(path) as reader:
        follower = MLflowTracker().open(reader, 1)
        follower.follow()
        assert not store.metrics()
        story.write("first")
        follower.follow()
        first = store.metrics()
        assert {step for _, step, _, _ in first} == {0}
        follower.follow()
        assert store.metrics() == first
        story.write("second", "end")
        follower.follow()
        follower.close()
    assert store.only().info.status == "FINISHED"
    assert len([name for name in store.only().data.files if name.startswith("rollouts/")]) == 2
    ids = [row["id"] for row in store.rows()]
    assert ids == [row["id"] for row in rollouts(story.folder, limit=None)]


def test_told_at_once_or_update_by_update_comes_to_the_same(tmp_path, store):
    story = Story(tmp_path)
    with Reader(journal_file(story.write("begin"))) as reader:
        follower = MLflowTracker(experiment="piecewise").open(reader, 1)
        for step in ("first", "second", "end"):
            story.write(step)
            follower.follow()
    replay(story.folder, experiment="at once")
    piecewise, at_once = (sorted(run.data.metrics) for run in store.runs.values())
    assert piecewise == at_once


@pytest.mark.parametrize("write", slow_but(range(1, 26, 5), range(1, 26)))
def test_whoever_dies_before_any_write_each_row_arrives_once(tmp_path, store, write, monkeypatch):
    story = Story(tmp_path)
    story.write("begin", "first")
    store.dies_at = write
    with Reader(journal_file(tmp_path)) as reader:
        follower = MLflowTracker().open(reader, 1)
        try:
            follower.follow()
            story.write("second")
            follower.follow()
        except Killed:
            pass
    story.write(*(("end",) if write > 8 else ("second", "end")))
    try:
        replay(tmp_path)
    except Killed:
        replay(tmp_path)
    assert store.writes >= write  # it has died
    ids = [row["id"] for row in store.rows()]
    assert ids == [row["id"] for row in rollouts(tmp_path, limit=None)]
    points = [(name, step) for name, step, _, _ in store.metrics()]
    assert len(points) == len(set(points))
    whole = Store()
    with monkeypatch.context() as patch:
        patch.setattr(mlflow, "MlflowClient", whole.client)
        replay(tmp_path)
    for name in ("books/predict.json", "decisions.json"):
        assert store.only().data.files[name] == whole.only().data.files[name]
    assert store.only().info.status == "FINISHED"


def test_a_run_that_was_killed_and_is_taken_up_again(tmp_path, store):
    story = Story(tmp_path)
    story.write("begin", "first")
    replay(tmp_path)
    assert store.only().info.status == "KILLED"
    with Reader(journal_file(tmp_path)) as reader:
        follower = MLflowTracker().open(reader, 1)
        story.write("second")
        follower.follow()
        assert store.only().info.status == "RUNNING"
    story.write("end")
    replay(tmp_path)
    assert store.only().info.status == "FINISHED"
    assert len(store.rows()) == 26


def test_a_store_that_is_down_is_reported_once_and_completed_later(tmp_path, store, caplog):
    path = journal_file(Story(tmp_path).whole())
    store.down = True
    with caplog.at_level(logging.WARNING):
        followed(path, MLflowTracker(experiment="my runs"))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "MLflow takes nothing" in said[0]
    assert f"combee track replay {tmp_path} --experiment 'my runs'" in said[1]
    assert KEY not in caplog.text
    with pytest.raises(ArgumentValueError, match="tracking_uri") as refused:
        replay(tmp_path)
    assert KEY not in str(refused.value)
    store.down = False
    replay(tmp_path, experiment="my runs")
    assert len(store.rows()) == 26


class Nonsense(BaseHTTPRequestHandler):
    """A tracking server that answers everything with HTTP 200 and what no client expects."""

    BODIES: ClassVar = (
        b"<html>log in</html>",
        b'{"experiment":',
        b"[]",
        b'{"surprise": 1}',
        bytes(range(256)),
        b'{"experiment": {"experiment_id": {"a": 1}}, "run": 7}',
    )
    answers = 0

    def do_GET(self):
        body = self.BODIES[Nonsense.answers % len(self.BODIES)]
        Nonsense.answers += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *given):
        pass


def test_a_server_that_answers_nonsense_breaks_no_run_and_is_named(tmp_path, caplog):
    place = Story(tmp_path).whole()
    with ThreadingHTTPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        for _ in Nonsense.BODIES:
            caplog.clear()
            with caplog.at_level(logging.WARNING, "combee_dspy"):
                followed(journal_file(place), MLflowTracker(tracking_uri=uri))
            said = "\n".join(record.getMessage() for record in caplog.records)
            assert "MLflow takes nothing, and is asked again" in said
            assert f"combee track replay {place} --tracking-uri {uri}" in said
            with pytest.raises(ArgumentValueError, match=r"tracking_uri cannot be written to"):
                replay(place, tracking_uri=uri)
        server.shutdown()
    assert Nonsense.answers >= 2 * len(Nonsense.BODIES)


def test_nothing_in_a_folder_says_where_its_runs_are_told(tmp_path, store, monkeypatch):
    """A folder of somebody else's may name an address; the token of the environment goes to none
    but one's own.
    """
    asked = []
    monkeypatch.setattr(
        mlflow, "MlflowClient", lambda tracking_uri=None: asked.append(tracking_uri) or store
    )
    evil = "http://evil.test"
    Story(
        tmp_path,
        specs={"tracker": {"name": "mlflow", "params": {"tracking_uri": evil}}},
        tracking_uri=evil,
        MLFLOW_TRACKING_URI=evil,
    ).whole()
    (tmp_path / ".env").write_text(f"MLFLOW_TRACKING_URI={evil}")
    (where,) = replay(tmp_path)
    replay(tmp_path, tracking_uri="http://mine.test")
    assert asked == [None, "http://mine.test"]
    assert evil not in where


def test_a_journal_that_is_being_written_is_left_alone(tmp_path, store):
    Story(tmp_path).write("begin")
    holder = Journal(tmp_path)
    try:
        with pytest.raises(JournalHeldError):
            replay(tmp_path)
    finally:
        holder.close()


def test_a_copy_of_a_journal_is_replayed_and_no_journal_is_made_beside_it(tmp_path, store):
    copy = tmp_path / "copies" / "yesterday.sqlite"
    copy.parent.mkdir()
    shutil.copy(journal_file(Story(tmp_path / "run").whole()), copy)
    replay(copy)
    assert len(store.rows()) == 26
    assert [one.name for one in copy.parent.iterdir() if one.suffix == ".sqlite"] == [copy.name]


def test_runs_of_one_journal_are_runs_of_their_own(tmp_path, store):
    Story(tmp_path, "first").whole()
    Story(tmp_path, "second").whole()
    assert len(replay(tmp_path)) == 2
    sizes = [
        len([name for name in run.data.files if name.startswith("rollouts/")])
        for run in store.runs.values()
    ]
    assert [run.info.name for run in store.runs.values()] == [
        "first, union, 8 rows",
        "second, union, 8 rows",
    ]
    assert sizes == [1, 1]


def test_no_key_leaves(tmp_path, store):
    specs = {"aggregator": {"name": f"api_key={KEY}", "params": {}}}
    Story(tmp_path, specs=specs).whole()
    (where,) = replay(tmp_path, tracking_uri=f"https://me:{KEY}@mlflow.test")
    assert KEY not in where
    data = store.only().data
    assert KEY not in repr((data.params, data.tags, data.metrics, store.rows()))
    assert not any(KEY.encode() in content for content in data.files.values())


def test_what_mlflow_would_cut_in_silence_says_so(tmp_path):
    named = [{"name": "x" * 10_000, "params": {}}]
    story = Story(tmp_path, specs={"operators": named, "odd@name=": {"name": "y", "params": {}}})
    with Reader(journal_file(story.whole())) as reader:
        history = RunHistory(reader, 1)
        result = params("main", 7, history.description)
        assert len(result["operators"]) == MAX_PARAM
        assert result["operators"].endswith(" …")
        assert result["odd_name_"] == "y"
        assert "Warning: validation is small" in description(reader, 1)


def test_mlflow_that_is_missing_is_named_before_the_run(monkeypatch):
    monkeypatch.delitem(sys.modules, "mlflow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDistributionError, match=r"combee-dspy\[mlflow\]"):
        MLflowTracker().check()


def test_a_real_store_keeps_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    story = Story(tmp_path / "run")
    path = journal_file(story.whole())
    followed(path, MLflowTracker(tracking_uri=uri))
    replay(story.folder, tracking_uri=uri)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("combee_dspy").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["cost/rollouts"] == 18
    assert [
        (one.step, one.value) for one in client.get_metric_history(run.info.run_id, "score/best")
    ] == [
        (0, 0.5),
        (1, 1),
    ]
    assert {list_artifact.path for list_artifact in client.list_artifacts(run.info.run_id)} == {
        "books",
        "calls",
        "decisions.json",
        "prompts",
        "report.html",
        "rollouts",
    }
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)  # which load_table asks, whatever the client's is
    try:
        decisions = client.load_table(experiment, "decisions.json", [run.info.run_id])
    finally:
        mlflow.set_tracking_uri(before)
    assert list(decisions["lesson"][:3]) == ["a1", "a1", "b2"]
    assert len(decisions) == 12
    assert run.data.metrics["lessons/served"] == 2
    book = json.loads(
        Path(client.download_artifacts(run.info.run_id, "books/predict.json")).read_text()
    )
    assert [lesson["state"] for lesson in book["lessons"]] == ["served", "served", "retired"]


def test_a_store_whose_making_was_cut_short_is_made_again(tmp_path, monkeypatch):
    path, contents = tmp_path / "stores" / "mlflow.db", [b"half", b"whole"]

    class Client:
        def __init__(self, tracking_uri):
            self.path = Path(tracking_uri.removeprefix("sqlite:///"))

        def search_experiments(self, max_results):
            self.path.write_bytes(contents.pop(0))
            if contents:
                raise Killed

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    with pytest.raises(Killed):
        _mlflow_store.make_store(f"sqlite:///{path}")
    assert not path.exists()
    _mlflow_store.make_store(f"sqlite:///{path}")
    assert path.read_bytes() == b"whole"
    for uri in (
        f"sqlite:///{path}",
        "sqlite:///:memory:",
        "http://mlflow.test",
        "sqlite:///x.db?mode=ro",
    ):
        _mlflow_store.make_store(uri)
    assert list(path.parent.iterdir()) == [path]


def test_the_experiment_that_is_set_for_mlflow_is_honoured(tmp_path, monkeypatch):
    place = Story(tmp_path).whole()
    for name, value, tracker, expected in (
        (
            "MLFLOW_EXPERIMENT_ID",
            "7",
            MLflowTracker(),
            "7",
        ),  # where mlflow.set_experiment leaves its choice
        ("MLFLOW_EXPERIMENT_NAME", "mine", MLflowTracker(), "mine"),
        ("MLFLOW_EXPERIMENT_ID", "7", MLflowTracker(experiment="own"), "own"),
        (
            "MLFLOW_EXPERIMENT_ID",
            "7",
            MLflowTracker(tracking_uri="sqlite:///other.db"),
            "combee_dspy",
        ),
    ):
        store = Store()
        with monkeypatch.context() as patch:
            patch.setattr(mlflow, "MlflowClient", store.client)
            patch.setattr(_mlflow_store, "make_store", lambda uri: None)
            patch.setenv(name, value)
            followed(journal_file(place), tracker)
        assert store.only().info.experiment == expected


@pytest.mark.usefixtures("patient_runs")
def test_beside_autologging_the_same_traces_are_kept_and_runs_are_nested(world, tmp_path, autolog):
    before = mlflow.tracking.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    counts = {}
    try:
        for name, options in (
            ("plain", None),
            ("autolog", {}),
            ("traces", {"log_traces_from_compile": True}),
        ):
            if options is not None:
                autolog(**options)
            with mlflow.start_run() as parent, dspy.context(lm=world.task_lm):
                combee = world.combee(tracker="mlflow", log_dir=tmp_path / name)
                combee.compile(
                    dspy.Predict("question -> answer"),
                    trainset=examples(12),
                    valset=examples(12, 12),
                )
            client, home = mlflow.MlflowClient(), parent.info.experiment_id
            nested = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
            (run,) = client.search_runs([home], nested)
            assert run.info.status == "FINISHED"
            told = client.search_traces(locations=[home], run_id=run.info.run_id)
            counts[name] = len(told)
        assert 0 < counts["plain"] <= 10
        assert set(counts.values()) == {counts["plain"]}
        mlflow.flush_trace_async_logging()
        every = client.search_traces(locations=[home], max_results=500)
        assert len(every) == sum(counts.values()), "a trace of each rollout costs more than it"
    finally:
        mlflow.set_tracking_uri(before)


@pytest.mark.usefixtures("patient_runs")
def test_a_program_and_its_telling_rollouts_are_kept_without_a_key(world, tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: uri)
    before = mlflow.tracking.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    student = dspy.Predict("question -> answer")
    student.lm = world.task_lm  # which cannot be written
    student.lm.kwargs["api_key"] = KEY
    try:
        for number, most in enumerate((60, 90)):
            with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
                combee = world.combee(
                    tracker=MLflowTracker(),
                    log_dir=tmp_path / str(number),
                    max_metric_calls=most,
                )
                learned = combee.compile(student, trainset=examples(12), valset=examples(12, 12))
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name("combee_dspy").experiment_id
        newest, oldest = client.search_runs([experiment])
        models = [
            # MLflow 3.5 tells outputs of a single run alone.
            client.get_run(run.info.run_id).outputs.model_outputs[0].model_id
            for run in (oldest, newest)
        ]
        files = [
            Path(client.get_logged_model(model).artifact_location, "program.json")
            for model in models
        ]
        assert [[one.name for one in file.parent.iterdir()] for file in files] == [
            ["program.json"]
        ] * 2
        again = dspy.Predict("question -> answer")
        again.load(files[1])
        assert again.signature.instructions == learned.signature.instructions
        assert again.lm is None
        traces = client.search_traces(locations=[experiment], run_id=newest.info.run_id)
        assert 0 < len(traces) <= 10
        for trace in traces:
            (score,) = [
                assessment for assessment in trace.info.assessments if assessment.name == "score"
            ]
            (span,) = trace.data.spans
            assert score.value == 1.0
            assert span.attributes["before"] == "0.0"
            assert set(span.outputs) == {"answer"}
        assert KEY not in "".join(file.read_text() for file in files)
        assert [dataset_input.dataset.name for dataset_input in newest.inputs.dataset_inputs] == [
            "train",
            "validation",
        ]
    finally:
        mlflow.set_tracking_uri(before)
