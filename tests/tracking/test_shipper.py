from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from combee_dspy import events
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.tracking import EventBus, Journal, entries_of
from combee_dspy.tracking import _shipper as _shipper_module
from combee_dspy.tracking._fold import TOLD_EVERY, Fold, Target
from combee_dspy.tracking._mlflow import MLflowHook, MLflowTracker
from combee_dspy.tracking._replay import replay
from combee_dspy.tracking._shipper import Shipper, ShipperThread, sole_shipper
from combee_dspy.tracking._store import Place, save_place
from combee_dspy.tracking._writes import Batch, Report

mlflow = pytest.importorskip("mlflow")

Story = Callable[[], list[events.Event]]


class Killed(BaseException):
    """What a SIGKILL is to a thread: nothing after it is done."""


class Server:
    """MLflow as the writer uses it: it keeps what it took, adds a point for every metric it is given, and may fail.

    ``before`` fails before a call takes effect, ``after`` after it: then it was taken and nobody knows.
    """

    def __init__(self) -> None:
        self.points: list[tuple[str, int, float]] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.versions: list[tuple[str, str, dict[str, str]]] = []
        self.status = ""
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        call = getattr(self, f"take_{name}")

        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.before()
            result = call(*args, **kwargs)
            self.after()
            return result

        return guarded

    def take_log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        self.points += [(metric.key, metric.step, metric.value) for metric in metrics]
        for param in params:
            assert self.params.get(param.key, param.value) == param.value, "MLflow refuses another value"
            self.params[param.key] = param.value
        self.tags.update({tag.key: tag.value for tag in tags})

    def take_get_metric_history(self, run_id: str, name: str) -> list[Any]:
        return [SimpleNamespace(step=step) for key, step, _ in self.points if key == name]

    def take_log_text(self, run_id: str, text: str, path: str) -> None:
        self.files[path] = text.encode()

    def take_log_artifact(self, run_id: str, path: str, folder: str | None) -> None:
        self.files[f"{folder}/{Path(path).name}"] = Path(path).read_bytes()

    def take_update_run(self, run_id: str, **changes: Any) -> None:
        self.status = changes.get("status", self.status)

    def take_set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self.status = status

    def take_set_tag(self, run_id: str, name: str, value: str) -> None:
        self.tags[name] = value

    def take_log_inputs(self, run_id: str, datasets: Any) -> None:
        pass

    def take_register_prompt(self, name: str, text: str, tags: dict[str, str]) -> Any:
        self.versions.append((name, text, tags))
        return SimpleNamespace(version=len(self.versions))

    def take_search_prompt_versions(self, name: str, max_results: int) -> list[Any]:
        return [
            SimpleNamespace(version=number, tags=tags)
            for number, (found, _, tags) in enumerate(self.versions, start=1)
            if found == name
        ]


def _shipper(folder: Path, server: Server, own: Path | None = None, *, every: float = 0.0) -> Shipper:
    return Shipper(folder, Place(server, "http://x", "run", "1"), Target(traces=0, every=every), "room", own)


def _journal(folder: Path, story: list[events.Event]) -> Journal:
    journal = Journal(folder)
    for event in story:
        journal.record(event)
    journal.close()
    return journal


def _params(server: Server) -> dict[str, str]:
    return {name: value for name, value in server.params.items() if not name.startswith(("digest/", "version/"))}


def _check(server: Server, truth: Server) -> None:
    steps = Counter((name, step) for name, step, _ in server.points)
    assert max(steps.values()) == 1
    assert sorted(server.points) == sorted(truth.points)
    assert server.files.keys() == truth.files.keys()
    assert _params(server) == _params(truth)
    assert server.status == truth.status
    assert len(server.versions) == len(truth.versions)


def _rollouts(server: Server) -> list[str]:
    import io

    from pyarrow import parquet

    parts = [content for path, content in server.files.items() if path.endswith(".parquet")]
    return [name for part in parts for name in parquet.read_table(io.BytesIO(part))["rollout_id"].to_pylist()]


@pytest.fixture
def truth(tmp_path: Path, story: Story) -> Server:
    server = Server()
    _journal(tmp_path / "truth", story())
    assert _shipper(tmp_path / "truth", server).finish()
    return server


def test_a_second_replay_changes_nothing(tmp_path: Path, story: Story, truth: Server) -> None:
    again = _shipper(tmp_path / "truth", truth)
    points = list(truth.points)
    assert again.finish()
    assert again.moved == 0
    assert truth.points == points
    assert again.rollouts == len(_rollouts(truth)) == 30


@pytest.mark.parametrize("seed", range(20))
def test_killed_anywhere_and_with_a_server_that_fails_anywhere_it_arrives_once(
    tmp_path: Path, story: Story, seed: int
) -> None:
    # Told of at the end of each iteration, or all together.
    every = 10.0 * (seed % 2)
    stream, server, truth = random.Random(seed), Server(), Server()
    _journal(tmp_path / "truth", story())
    assert _shipper(tmp_path / "truth", truth, every=every).finish()
    journal = _journal(tmp_path / "run", story())

    first, calls = stream.randrange(2, 30), [0]

    def strike() -> None:
        draw = stream.random()
        calls[0] += 1
        if calls[0] == first or draw < 0.005:
            raise Killed
        if draw < 0.03:
            raise OSError("connection refused")

    server.before = server.after = strike
    kills = 0
    for _ in range(200):
        shipper = _shipper(tmp_path / "run", server, every=every)
        try:
            while not shipper.finish():
                pass
        except Killed:
            kills += 1
            continue
        break
    else:
        pytest.fail("it never got through")
    assert kills > 0
    server.before = server.after = lambda: None
    _check(server, truth)
    ids = _rollouts(server)
    assert len(ids) == len(set(ids)) == 30
    assert all(name.startswith(journal.run_id) for name in ids)


@pytest.mark.parametrize("told", [12, 20, None])
def test_where_acknowledgements_were_lost_it_arrives_once_all_the_same(
    tmp_path: Path, story: Story, truth: Server, monkeypatch: pytest.MonkeyPatch, told: int | None
) -> None:
    server = Server()
    journal = Journal(tmp_path / "run")
    shipper = _shipper(tmp_path / "run", server, journal.file)

    def full(file: Path, data: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_shipper_module, "write_json", full)
        for event in story()[:told]:
            journal.record(event)
        assert shipper.step()
    # Killed; the disk has room again.
    for event in story()[len(story()) if told is None else told :]:
        journal.record(event)
    journal.close()
    assert _shipper(tmp_path / "run", server).finish()
    _check(server, truth)


def test_a_killed_run_is_complete_as_far_as_it_got_and_goes_on_when_resumed(tmp_path: Path, story: Story) -> None:
    events_of_run = story()
    middle = next(index for index, one in enumerate(events_of_run) if one.iteration == 2) + 6
    server = Server()
    killed = Journal(tmp_path / "run")
    for event in events_of_run[:middle]:
        killed.record(event)
    # No end is written: this process was killed in its second iteration.
    assert _shipper(tmp_path / "run", server).finish()
    assert server.status == "KILLED"
    assert {step for _, step, _ in server.points} == {0, 1}
    assert len(_rollouts(server)) == killed_count(events_of_run[:middle])
    resumed = [events_of_run[0], *(one for one in events_of_run if one.iteration == 2)]
    _journal(tmp_path / "run", resumed)
    assert _shipper(tmp_path / "run", server).finish()
    assert server.status == "FINISHED"
    assert max(Counter((name, step) for name, step, _ in server.points).values()) == 1
    assert {step for _, step, _ in server.points} == {0, 1, 2}
    ids = _rollouts(server)
    assert len(ids) == len(set(ids)) == killed_count(events_of_run[:middle]) + killed_count(resumed)


@pytest.mark.parametrize("options", [{"every": 0.0}, {}], ids=["noted", "older than the option"])
def test_a_run_that_is_resumed_with_another_interval_has_each_rollout_once(
    tmp_path: Path, story: Story, options: dict[str, Any]
) -> None:
    now, server = iter(range(1_000_000)), Server()
    place = Place(server, "http://x", "run", "1")
    last = max(index for index, one in enumerate(story()) if isinstance(one, events.IterationFinished)) + 1
    killed = Journal(tmp_path, clock=lambda: next(now) * 0.1)
    save_place(tmp_path, place, options)
    for event in story()[:last]:
        killed.record(event)
    assert _shipper(tmp_path, server, killed.file).step()
    resumed = Journal(tmp_path, clock=lambda: next(now) * 0.1)
    hook = MLflowHook(MLflowTracker(traces=0, every=10.0), place, resumed)
    with EventBus([hook], journal=resumed) as bus:
        for event in [story()[0], *story()[last:]]:
            bus.emit(event)
    assert hook.shipper.complete
    ids = _rollouts(server)
    assert len(ids) == len(set(ids)) == 30


def killed_count(heard: list[events.Event]) -> int:
    return sum(isinstance(event, events.RolloutFinished) for event in heard)


def test_a_write_that_mlflow_refuses_is_left_out_and_said(
    tmp_path: Path, story: Story, truth: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    _journal(tmp_path / "run", story())
    shipper = _shipper(tmp_path / "run", server)
    refused = iter([True])

    def refuse() -> None:
        if next(refused, False):
            raise mlflow.exceptions.MlflowException("bad name", error_code=1000)

    server.before = refuse
    with caplog.at_level(logging.WARNING):
        assert shipper.finish()
    assert shipper.left_out == 1
    assert "refused Batch, which is left out" in caplog.text
    assert sorted(server.points) == sorted(truth.points)


def test_a_dead_server_holds_up_nothing_and_the_command_is_named(
    tmp_path: Path, story: Story, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from combee_dspy.tracking import _mlflow

    monkeypatch.setattr(_mlflow, "_PATIENCE", 0.2)
    server = Server()

    def dead() -> None:
        raise OSError("connection refused")

    server.before = dead
    tracker = MLflowTracker(spool=str(tmp_path / "spool"))
    hook = MLflowHook(tracker, Place(server, "http://x", "run", "1"))
    with caplog.at_level(logging.WARNING), EventBus([hook]) as bus:
        for event in story():
            bus.emit(event)
    assert not hook.shipper.complete
    assert f"`combee track replay {hook.journal.folder}`" in caplog.text
    assert caplog.text.count("MLflow does not answer") == 1


def test_a_server_that_answers_again_gets_all(tmp_path: Path, story: Story, truth: Server) -> None:
    server = Server()
    fails = iter([True] * 3)

    def flaky() -> None:
        if next(fails, False):
            raise OSError("connection refused")

    server.before = flaky
    journal = _journal(tmp_path / "run", story())
    thread = ShipperThread(_shipper(tmp_path / "run", server, journal.file))
    assert thread.close(patience=30.0, longest=60.0)
    _check(server, truth)


def test_short_iterations_share_what_mlflow_is_told_and_long_ones_do_not(tmp_path: Path, story: Story) -> None:
    def told(seconds: float, every: float = TOLD_EVERY) -> list[list[int]]:
        """Return the steps of each writing of metrics, with so many seconds between two lines of the journal."""
        now = iter(range(1_000_000))
        journal = Journal(tmp_path / f"{seconds} {every}", clock=lambda: next(now) * seconds)
        for event in story():
            journal.record(event)
        journal.close()
        fold = Fold(journal.folder, Target(every=every))
        writes = [write for entry in entries_of(journal.folder) for write in fold.feed(entry)]
        batches = [write.points for write in writes if isinstance(write, Batch)]
        return [sorted({step for *_, step in points}) for points in batches if points]

    assert told(0.001) == [[0], [1, 2]]
    assert told(1.0) == told(0.001, every=0.0) == [[0], [1], [2], [2]]


def test_a_score_that_is_no_number_is_no_metric_and_stops_nothing(
    tmp_path: Path, make_rollout: Callable[..., Rollout]
) -> None:
    rollouts = [
        events.RolloutFinished(
            iteration=1,
            rollout=make_rollout(number, score=score),
            rollout_id=f"r{number}",
            candidate_id="c",
            split="train",
            purpose="parent",
        )
        for number, score in enumerate((float("nan"), 1.0))
    ]
    over = events.IterationFinished(iteration=1, accepted=False, rollouts=2, best_score=1.0, seconds=1.0)
    journal = _journal(tmp_path, [*rollouts, over])
    fold = Fold(journal.folder, Target())
    writes = [write for entry in entries_of(journal.folder) for write in fold.feed(entry)]
    points = {name: value for write in writes if isinstance(write, Batch) for name, value, *_ in write.points}
    assert points["rollouts/bought"] == 2
    assert "train/minibatch" not in points
    assert any(isinstance(write, Report) for write in fold.finish())


def test_what_was_begun_early_for_an_iteration_that_has_not_come_leaves_it_its_metrics(
    tmp_path: Path, story: Story, truth: Server, make_rollout: Callable[..., Rollout]
) -> None:
    def third(number: int, purpose: str) -> events.RolloutFinished:
        return events.RolloutFinished(
            iteration=3,
            rollout=make_rollout(number, 1.0),
            rollout_id=f"{purpose}-{number}",
            candidate_id="c",
            split="train",
            purpose=purpose,
        )

    told = story()
    last = max(index for index, one in enumerate(told) if isinstance(one, events.IterationFinished))
    # One is told before the last iteration closes, the others when the run stops.
    for place, number in ((last, 1), (last + 2, 2), (last + 2, 3)):
        told.insert(place, third(number, "speculative"))
    told.insert(last, events.ScheduleDecided(iteration=3, schedule_id="s", decision="flush", values={}))
    server = Server()
    _journal(tmp_path / "run", told)
    assert _shipper(tmp_path / "run", server).finish()
    early = {name: value for name, step, value in server.points if step == 3}
    assert (early["early/rollouts/speculative"], early["early/rollouts/run"]) == (3, 3)
    assert early["early/latency/rollout_mean"] == 0.5
    assert sorted(point for point in server.points if point[1] != 3) == sorted(truth.points)

    # The run goes on with a larger budget.
    over = events.IterationFinished(iteration=3, accepted=False, rollouts=40, best_score=0.7, seconds=3.0)
    end = replace(story()[-1], iteration=3, rollouts=40)
    started = events.IterationStarted(iteration=3)
    _journal(tmp_path / "run", [story()[0], started, *(third(number, "parent") for number in range(4)), over, end])
    assert _shipper(tmp_path / "run", server).finish()
    own = {name: value for name, step, value in server.points if step == 3 and not name.startswith("early/")}
    assert (own["rollouts/run"], own["train/minibatch"], own["rollouts/bought"]) == (4, 1.0, 40)
    assert (own["time/iteration"], own["val/best"]) == (3.0, 0.7)
    assert max(Counter((name, step) for name, step, _ in server.points).values()) == 1


def test_two_shippers_of_one_journal_are_refused(tmp_path: Path, story: Story) -> None:
    pytest.importorskip("fcntl")
    _journal(tmp_path, story()[:3])
    with sole_shipper(tmp_path), pytest.raises(ArgumentValueError, match="another process"):
        replay(tmp_path, "sqlite:///unused.db")


def test_a_journal_without_a_store_asks_for_one(tmp_path: Path, story: Story) -> None:
    _journal(tmp_path, story()[:3])
    with pytest.raises(ArgumentValueError, match="was not recorded in MLflow"):
        replay(tmp_path)


def test_a_journal_that_was_never_recorded_gets_a_run_of_its_own(
    tmp_path: Path, story: Story, store: tuple[str, Path], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log_dir = tmp_path / "log"
    _journal(log_dir / "journal", story())
    client.create_experiment("later", artifact_location=(store[1] / "artifacts").as_uri())
    first = replay(log_dir, store[0], "later")
    run = client.get_run(first.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "formula-mini/route 24-3-5 seed 7")
    assert run.data.metrics["val/best"] == 0.7
    second = replay(log_dir)
    assert (second.run_id, second.writes, second.rollouts) == (first.run_id, 0, 30)
    for name in client.get_run(first.run_id).data.metrics:
        steps = [point.step for point in client.get_metric_history(first.run_id, name)]
        assert len(set(steps)) == len(steps)
