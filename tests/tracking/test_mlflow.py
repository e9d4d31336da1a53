"""MLflow gets each row exactly once, whoever dies in between, and no key."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import dspy
import pytest

from combee_dspy.exceptions import ArgumentValueError, JournalHeldError, MissingDistributionError
from combee_dspy.journal import Journal, Reader, RunHistory, journal_file
from combee_dspy.traces import Trace
from combee_dspy.tracking import MLflowTracker, _mlflow_end, _mlflow_store, replay, rollouts
from combee_dspy.tracking._metrics import description
from combee_dspy.tracking._params import MAX_PARAM, params
from tests.conftest import copy_store
from tests.slow import slow_but
from tests.tracking.journals import KEY, SWAPPED, TEXTS, Story, followed
from tests.worlds import examples

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("pyarrow.parquet")

from tests.tracking.stores import Killed, Store  # noqa: E402 - which needs both


@pytest.fixture
def store(monkeypatch):
    store = Store()
    monkeypatch.setattr(mlflow, "MlflowClient", store.client)
    monkeypatch.setattr(_mlflow_store, "make_store", lambda uri: None)
    monkeypatch.setattr(_mlflow_end, "record_trace", store.record)
    return store


def test_a_whole_run_is_recorded(tmp_path, store):
    place = Story(tmp_path).whole()
    (where,) = replay(place)
    assert where.startswith("mlflow ui --backend-store-uri")
    run, points = store.only(), store.points()
    assert (run.info.status, run.info.name) == ("FINISHED", "Sort, union, 8 rows")
    assert run.data.datasets == ["train"]
    assert {
        "size/train": "8",
        "model/task": "openai/simulated",
        "digest/train": "a" * 64,
        "evaluator": "tests.metric #0123456789ab",
    }.items() <= run.data.params.items()
    assert {
        ("score/best", 0): 0.5,
        ("score/best", 1): 1.0,
        ("score/train", 1): 0.5,
        ("tokens/proposer", 1): 240,
        ("scan/kept", 0): 0.5,
        ("score/heldout_before", 1): 0.5,
        ("score/heldout", 1): 0.75,
        ("score/chosen", 1): 1.0,
        ("cost/rollouts", 1): 18,
        ("cost/heldout_rollouts", 1): 8,
    }.items() <= points.items()
    by_role = ("lessons/", "tokens/", "dollars/")
    assert len({name for name, _ in points if not name.startswith(by_role)}) <= 15
    assert run.data.files["prompts/predict.txt"].decode() == TEXTS[SWAPPED]["predict"]
    assert b"<!doctype html>" in run.data.files["report.html"]
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("Held-out not shown to be better, n = 4: 0.500 → 0.750 (+0.250")
    assert "simulated" in note
    shown = {name: tag for name, tag in run.data.tags.items() if not name.startswith("mlflow.")}
    assert shown == {"combee.heldout": "not shown to be better, n = 4"}, (
        "how far a run has come is nobody's label"
    )


def test_each_row_names_who_was_asked_and_what_it_cost_by_role(tmp_path, store):
    replay(Story(tmp_path).whole())
    first, *_ = rows = store.rows()
    assert [row["id"] for row in rows] == [row["id"] for row in rollouts(tmp_path, limit=None)]
    assert {
        "task_model": "openai/simulated",
        "proposer_model": "openai/simulated",
        "evaluator": "tests.metric #0123456789ab",
        "split": "validation",
        "score": 1.0,
        "tokens": 15,
        "tokens_task": 15,
        "tokens_evaluator": 0,
    }.items() <= first.items()
    assert {"prompt_hash", "seconds", "gpu_seconds", "dollars"} <= set(first)
    calls = store.rows("calls")
    assert [call["purpose"] for call in calls if call["role"] == "proposer"] == ["AddLessons"] * 2
    assert sum(call["dollars"] or 0 for call in calls) == pytest.approx(0.026)
    tokens = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
    last = [store.points()[f"tokens/{role}", 2] for role in ("task", "proposer")]
    assert sum(last) == tokens, "the held-out set is in the sums"


def test_a_recorded_rollout_is_a_row_with_its_origin_and_no_cost(tmp_path, store, world):
    origin = {"prompt": "p1", "model": "m1", "time": 1_700_000_000.0}
    traces = [
        Trace("t1", {"question": "word for ant?"}, {"answer": "?"}, score=0.0, **origin),
        Trace("t2", {"question": "word for bee?"}, {"answer": "?"}, feedback="Wrong."),
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        world.combee(log_dir=tmp_path).compile(dspy.Predict("question -> answer"), traces=traces)
    replay(tmp_path)
    recorded = {row["example"]: row for row in store.rows()}
    assert recorded.keys() == {"t1", "t2"}
    assert json.loads(recorded["t1"]["origin"]) == {"trace": "t1", **origin}
    assert recorded["t1"]["task_model"] == "m1"
    assert {(row["calls"], row["dollars"]) for row in recorded.values()} == {(0, 0.0)}
    run = store.only()
    assert run.data.datasets == ["traces"]
    assert run.info.name == "Predict, reference-scan, 2 traces"
    assert b"2 recorded rollouts were read, and none was bought" in run.data.files["report.html"]
    assert {value for (name, _), value in store.points().items() if name == "cost/rollouts"} == {0}


def test_a_model_without_a_price_takes_no_dollars_from_the_others(tmp_path, store):
    replay(Story(tmp_path).whole())
    points = store.points()
    for step, dollars in ((1, 0.018), (2, 0.026)):
        assert points["dollars/task", step] == pytest.approx(dollars)
        assert points["cost/dollars", step] == pytest.approx(dollars)
    assert ("dollars/proposer", 1) not in points
    assert points["cost/unpriced_calls", 1] == 2
    assert "$0.0260 and 2 calls without a price" in store.only().data.tags["mlflow.note.content"]


def test_each_setting_is_a_parameter_of_its_own_name():
    description = {
        "program": "Sort",
        "specs": {
            "aggregator": {"kind": "aggregator", "name": "union", "params": {"copies": 2}},
            "operators": [{"kind": "operator", "name": "insert", "params": {"max_tokens": 9}}],
        },
        "settings": {"num_threads": 8, "guards.max_tokens": None},
        "search": {"staleness": 1},
        "sizes": {"train": 8},
    }
    assert params("main", 7, description) == {
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


def test_what_mlflow_would_cut_in_silence_says_so(tmp_path):
    specs = {
        "operators": [{"name": "x" * 10_000, "params": {}}],
        "odd@name=": {"name": "y", "params": {}},
    }
    with Reader(journal_file(Story(tmp_path, specs=specs).whole())) as reader:
        history = RunHistory(reader, 1)
        values = params("main", 7, history.description)
        assert len(values["operators"]) == MAX_PARAM
        assert values["operators"].endswith(" …")
        assert values["odd_name_"] == "y"
        assert "Warning: validation is small" in description(history)


def test_doing_it_twice_changes_nothing(tmp_path, store):
    place = Story(tmp_path).whole()
    replay(place)
    writes, before = store.writes, store.metrics()
    replay(place)
    assert store.metrics() == before
    assert store.writes == writes + 1, "the client alone"


def test_a_follower_that_sends_the_end_after_a_replay_did_changes_nothing(tmp_path, store):
    story = Story(tmp_path)
    with Reader(journal_file(story.write("begin", "first"))) as reader:
        follower = MLflowTracker().open(reader, 1)
        follower.follow()
        story.write("second", "end")
        replay(story.folder)
        rows, metrics, traces = store.rows(), store.metrics(), list(store.traces)
        follower.follow()
    assert (store.rows(), store.metrics(), store.traces) == (rows, metrics, traces)


def test_the_book_and_every_decision_about_it_are_artifacts(tmp_path, store):
    replay(Story(tmp_path).whole())
    files = store.only().data.files
    book = json.loads(files["books/predict.json"])
    assert book["component"] == "predict"
    city, unit, river = book["lessons"]
    fields = ("id", "text", "state", "reason", "sources", "born", "rule", "rivals")
    assert tuple(city) == tuple(unit) == tuple(river) == fields
    assert (city["state"], city["sources"], city["rivals"]) == ("served", ["r1", "r2"], ["d4"])
    assert (unit["state"], unit["rule"]) == ("served", "a1")
    assert (river["state"], river["rivals"]) == ("retired", ["a1"])
    table = json.loads(files["decisions.json"])
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    columns = ("update", "change", "lesson", "before", "after")
    assert [tuple(row[name] for name in columns) for row in rows] == [
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
    test = rows[10]
    assert (test["rows"], test["wins"], test["losses"], test["accepted"]) == (4, 2, 0, True)
    assert "2 better, 0 worse of 4 validation rows, accepted" in test["why"]
    points = store.points()
    for state, counts in {
        "served": [3, 1, 2],
        "waiting": [0, 1, 0],
        "retired": [0, 1, 1],
        "void": [0, 2, 2],
    }.items():
        # The last is after the tests.
        assert [points[f"lessons/{state}", step] for step in range(3)] == counts


def test_a_run_without_a_book_has_no_artifact_of_it(tmp_path, store):
    replay(Story(tmp_path).write("begin"))
    data = store.only().data
    assert not [name for name in data.files if name.startswith(("books/", "decisions"))]
    assert not [name for name, *_ in data.metrics if name.startswith("lessons/")]


def test_update_by_update_or_at_once_comes_to_the_same(tmp_path, store):
    story = Story(tmp_path)
    with Reader(journal_file(story.write("begin"))) as reader:
        follower = MLflowTracker(experiment="piecewise").open(reader, 1)
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
    assert len([name for name in store.only().data.files if name.startswith("rollouts/")]) == 2
    assert [row["id"] for row in store.rows()] == [
        row["id"] for row in rollouts(tmp_path, limit=None)
    ]
    replay(tmp_path, experiment="at once")
    piecewise, at_once = store.runs.values()
    assert piecewise.data.metrics == at_once.data.metrics
    assert piecewise.info.status == at_once.info.status == "FINISHED"


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
    assert store.writes >= write, "it has died"
    ids = [row["id"] for row in store.rows()]
    assert ids == [row["id"] for row in rollouts(tmp_path, limit=None)]
    assert len(store.points()) == len(store.metrics())
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
    first, second = (record.getMessage() for record in caplog.records)
    assert "MLflow takes nothing" in first
    assert f"combee track replay {tmp_path} --experiment 'my runs'" in second
    with pytest.raises(ArgumentValueError, match="tracking_uri") as refused:
        replay(tmp_path)
    assert KEY not in f"{caplog.text} {refused.value}"
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

    def log_message(self, *_):
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
            assert "MLflow takes nothing, and is asked again" in caplog.text
            assert f"combee track replay {place} --tracking-uri {uri}" in caplog.text
            with pytest.raises(ArgumentValueError, match=r"tracking_uri cannot be written to"):
                replay(place, tracking_uri=uri)
        server.shutdown()
    assert Nonsense.answers >= 2 * len(Nonsense.BODIES)


def test_nothing_in_a_folder_decides_where_its_runs_are_sent(tmp_path, store, monkeypatch):
    """A folder of somebody else's may name an address; the token of the environment goes to none
    but one's own.
    """
    addresses = []
    monkeypatch.setattr(
        mlflow, "MlflowClient", lambda tracking_uri=None: addresses.append(tracking_uri) or store
    )
    evil = "http://evil.test"
    specs = {"tracker": {"name": "mlflow", "params": {"tracking_uri": evil}}}
    Story(tmp_path, specs=specs, tracking_uri=evil, MLFLOW_TRACKING_URI=evil).whole()
    (tmp_path / ".env").write_text(f"MLFLOW_TRACKING_URI={evil}")
    (where,) = replay(tmp_path)
    replay(tmp_path, tracking_uri="http://mine.test")
    assert addresses == [None, "http://mine.test"]
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
    assert [file.name for file in copy.parent.glob("*.sqlite")] == [copy.name]


def test_a_replay_of_an_older_copy_makes_no_row_arrive_twice(tmp_path, store):
    story = Story(tmp_path / "run")
    copy = tmp_path / "yesterday.sqlite"
    shutil.copy(journal_file(story.write("begin", "first")), copy)
    story.write("second")
    replay(story.folder)
    replay(copy)
    story.write("end")
    replay(story.folder)
    ids = [row["id"] for row in rollouts(story.folder, limit=None)]
    assert [row["id"] for row in store.rows()] == ids
    assert store.only().info.status == "FINISHED"


def test_runs_of_one_journal_are_runs_of_their_own(tmp_path, store):
    for name in ("first", "second"):
        Story(tmp_path, name).whole()
    assert len(replay(tmp_path)) == 2
    for name, run in zip(("first", "second"), store.runs.values(), strict=True):
        assert run.info.name == f"{name}, union, 8 rows"
        assert len([file for file in run.data.files if file.startswith("rollouts/")]) == 1


def test_no_key_leaves(tmp_path, store):
    specs = {"aggregator": {"name": f"api_key={KEY}", "params": {}}}
    Story(tmp_path, specs=specs).whole()
    (where,) = replay(tmp_path, tracking_uri=f"https://me:{KEY}@mlflow.test")
    data = store.only().data
    assert KEY not in repr((where, data.params, data.tags, data.metrics, store.rows()))
    assert not any(KEY.encode() in content for content in data.files.values())


def test_mlflow_that_is_missing_is_named_before_the_run(monkeypatch):
    monkeypatch.delitem(sys.modules, "mlflow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDistributionError, match=r"combee-dspy\[mlflow\]"):
        MLflowTracker().check()


@pytest.fixture
def real_store(empty_store, tmp_path, monkeypatch):
    """Set MLflow to a store of its own, a SQLite file; returns its client."""
    monkeypatch.chdir(tmp_path)
    before, uri = mlflow.get_tracking_uri(), copy_store(empty_store, tmp_path)
    mlflow.set_tracking_uri(uri)
    yield mlflow.MlflowClient(uri)
    mlflow.set_tracking_uri(before)


def test_a_real_store_keeps_it(tmp_path, real_store):
    story = Story(tmp_path / "run")
    followed(journal_file(story.whole()), MLflowTracker())
    replay(story.folder)
    experiment = real_store.get_experiment_by_name("combee_dspy").experiment_id
    (run,) = real_store.search_runs([experiment])
    number = run.info.run_id
    assert run.info.status == "FINISHED"
    assert (run.data.metrics["cost/rollouts"], run.data.metrics["lessons/served"]) == (18, 2)
    points = real_store.get_metric_history(number, "score/best")
    assert [(point.step, point.value) for point in points] == [(0, 0.5), (1, 1)]
    folders = ("books", "calls", "decisions.json", "prompts", "report.html", "rollouts")
    assert tuple(entry.path for entry in real_store.list_artifacts(number)) == folders
    decisions = real_store.load_table(experiment, "decisions.json", [number])
    assert list(decisions["lesson"][:3]) == ["a1", "a1", "b2"]
    assert len(decisions) == 12
    book = json.loads(Path(real_store.download_artifacts(number, "books/predict.json")).read_text())
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
    others = ("sqlite:///:memory:", "http://mlflow.test", "sqlite:///x.db?mode=ro")
    for uri in (f"sqlite:///{path}", *others):
        _mlflow_store.make_store(uri)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "value", "options", "experiment"),
    [
        # Where mlflow.set_experiment leaves its choice.
        ("MLFLOW_EXPERIMENT_ID", "7", {}, "7"),
        ("MLFLOW_EXPERIMENT_NAME", "mine", {}, "mine"),
        ("MLFLOW_EXPERIMENT_ID", "7", {"experiment": "own"}, "own"),
        ("MLFLOW_EXPERIMENT_ID", "7", {"tracking_uri": "sqlite:///other.db"}, "combee_dspy"),
    ],
)
def test_the_experiment_that_is_set_for_mlflow_is_honoured(
    tmp_path, store, monkeypatch, name, value, options, experiment
):
    monkeypatch.setenv(name, value)
    followed(journal_file(Story(tmp_path).whole()), MLflowTracker(**options))
    assert store.only().info.experiment == experiment


@pytest.mark.usefixtures("patient_runs")
def test_beside_autologging_the_same_traces_are_kept_and_runs_are_nested(
    world, tmp_path, autolog, real_store
):
    counts = []
    for options in (None, {}, {"log_traces_from_compile": True}):
        if options is not None:
            autolog(**options)
        with mlflow.start_run() as parent, dspy.context(lm=world.task_lm):
            combee = world.combee(tracker="mlflow", log_dir=tmp_path / str(options))
            student = dspy.Predict("question -> answer")
            combee.compile(student, trainset=examples(12), valset=examples(12, 12))
        home = parent.info.experiment_id
        nested = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
        (run,) = real_store.search_runs([home], nested)
        assert run.info.status == "FINISHED"
        counts.append(len(real_store.search_traces(locations=[home], run_id=run.info.run_id)))
    assert 0 < counts[0] <= 10
    assert set(counts) == {counts[0]}
    mlflow.flush_trace_async_logging()
    every = real_store.search_traces(locations=[home], max_results=500)
    assert len(every) == sum(counts), "a trace of each rollout costs more than it"


@pytest.mark.usefixtures("patient_runs")
def test_a_program_and_its_telling_rollouts_are_kept_without_a_key(world, tmp_path, real_store):
    student = dspy.Predict("question -> answer")
    student.lm = world.task_lm  # which cannot be written
    student.lm.kwargs["api_key"] = KEY
    for most in (60, 90):
        combee = world.combee(tracker="mlflow", log_dir=tmp_path / str(most), max_metric_calls=most)
        with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
            learned = combee.compile(student, trainset=examples(12), valset=examples(12, 12))
    experiment = real_store.get_experiment_by_name("combee_dspy").experiment_id
    newest, oldest = real_store.search_runs([experiment])
    files = []
    for run in (oldest, newest):
        # MLflow 3.5 tells outputs of a single run alone.
        (model,) = real_store.get_run(run.info.run_id).outputs.model_outputs
        folder = Path(real_store.get_logged_model(model.model_id).artifact_location)
        files.append(folder / "program.json")
        assert list(folder.iterdir()) == files[-1:]
    assert KEY not in "".join(file.read_text() for file in files)
    again = dspy.Predict("question -> answer")
    again.load(files[1])
    assert again.signature.instructions == learned.signature.instructions
    assert again.lm is None
    traces = real_store.search_traces(locations=[experiment], run_id=newest.info.run_id)
    assert 0 < len(traces) <= 10
    for trace in traces:
        scores = [item.value for item in trace.info.assessments if item.name == "score"]
        (span,) = trace.data.spans
        assert (scores, span.attributes["before"]) == ([1.0], "0.0")
        assert set(span.outputs) == {"answer"}
    names = [entry.dataset.name for entry in newest.inputs.dataset_inputs]
    assert names == ["train", "validation"]
