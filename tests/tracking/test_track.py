"""Followers are driven beside a run, see its end, and never break it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import ClassVar

import dspy
import pytest

from combee_dspy import Combee, Validation, tracking
from combee_dspy.exceptions import MissingDistributionError
from combee_dspy.journal import journal_file
from combee_dspy.testing import ScriptedLM, as_chat
from combee_dspy.tracking import Follower, Progress, Tracker, default_trackers, runs, track
from tests.tracking.journals import KEY, Story, followed


class Watcher(Tracker, Follower):
    """Notes what it sees, and fails where it is told to."""

    name: ClassVar[str] = "watcher"

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in = fails_in
        self.seen, self.threads, self.closed = [], set(), 0

    def params(self):
        return {"fails_in": self.fails_in}

    def check(self):
        if self.fails_in == "check":
            raise MissingDistributionError("tracker 'watcher'", "nothing")

    def open(self, reader, run):
        self._may_fail("open")
        self.reader, self.run = reader, run
        return self

    def follow(self):
        self.threads.add(threading.current_thread())
        self._may_fail("follow")
        self.seen.append(
            self.reader.rows("SELECT state FROM run WHERE id = ?", (self.run,))[0]["state"]
        )

    def close(self):
        self.closed += 1
        self._may_fail("close")

    def _may_fail(self, where):
        if self.fails_in == where:
            raise RuntimeError(f"cannot {where} with {KEY}")


@pytest.fixture
def path(tmp_path):
    return journal_file(Story(tmp_path).whole())


def test_a_follower_sees_the_end_from_a_thread_of_its_own(path):
    watcher, other = Watcher(), Watcher()
    followed(path, watcher, other)
    assert watcher.seen[-1] == "finished"
    assert watcher.closed == other.closed == 1
    assert threading.current_thread() not in watcher.threads
    assert watcher.threads.isdisjoint(other.threads)


def test_the_event_loop_is_free_while_trackers_end(path):
    turned = threading.Event()

    class Waiter(Watcher):
        def close(self):
            super().close()
            self.free = turned.wait(10)

    waiter = Waiter()

    async def run():
        asyncio.get_running_loop().call_later(0.1, turned.set)
        async with track(path, 1, [waiter]):
            pass

    asyncio.run(run())
    assert waiter.free
    assert waiter.seen[-1] == "finished"


def test_a_thread_that_cannot_begin_lets_the_others_end(path, monkeypatch):
    class Second(Watcher):
        name: ClassVar[str] = "second"

    watcher, begin = Watcher(), threading.Thread.start

    def start(thread):
        if thread.name == "combee-second":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        followed(path, watcher, Second())
    assert watcher.closed == 1


@pytest.mark.parametrize("where", ["open", "follow", "close"])
def test_a_follower_that_raises_is_reported_once_and_left_out(path, caplog, where):
    broken, sound = Watcher(where), Watcher()
    with caplog.at_level(logging.WARNING):
        followed(path, broken, sound)
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"cannot {where}" in message
    assert "'watcher'" in message
    assert KEY not in message
    assert broken.closed == (where != "open")
    assert sound.seen[-1] == "finished"


def test_what_is_not_installed_is_said_before_anything_is_bought_and_leaves_no_run(world, tmp_path):
    with pytest.raises(MissingDistributionError):
        world.compile(tracker=Watcher("check"), log_dir=tmp_path)
    assert not world.asked
    assert runs(tmp_path) == []


def test_an_error_of_the_run_passes_through(path):
    watcher = Watcher()
    with pytest.raises(KeyError):
        followed(path, watcher, body={}.popitem)
    assert watcher.closed == 1


def test_a_journal_that_is_gone_breaks_nothing(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        followed(tmp_path / "journal.sqlite", Watcher())
    assert "watcher" in caplog.text


def test_by_default_a_run_says_a_line_an_update_to_logs_and_notebooks(
    world, caplog, capfd, monkeypatch
):
    assert default_trackers() == (Progress(),)
    with caplog.at_level(logging.INFO, "combee_dspy"):
        updates = world.compile(tracker=None, reflection_minibatch_size=6).combee_report.updates
    lines = [
        record.getMessage() for record in caplog.records if record.name == "combee_dspy.progress"
    ]
    assert sum("; best " in line and "update " in line for line in lines) == updates > 0
    assert len(lines) <= updates + 6
    # A notebook: standard error is no terminal, and nobody has set logging up.
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    world.compile(tracker=None, reflection_minibatch_size=6)
    assert "update 0: 6 rows in" in capfd.readouterr().err


def test_each_public_name_can_be_imported():
    assert all(getattr(tracking, name) for name in tracking.__all__)


def test_nothing_of_tracking_runs_on_a_thread_that_a_rollout_runs_on():
    workers, trackers = set(), set()

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        workers.add(threading.get_ident())
        return 0.5

    def note(frame, event, argument):
        if "/combee_dspy/tracking/" in frame.f_code.co_filename:
            trackers.add(threading.get_ident())

    lm = ScriptedLM(lambda request: as_chat({"answer": "x", "lessons": "[]", "reasoning": "x"}))
    rows = [dspy.Example(question=str(number)).with_inputs("question") for number in range(8)]
    options = {"num_threads": 2, "tracker": "progress", "validation": Validation(probe=False)}
    combee = Combee(metric, reflection_lm=lm, max_metric_calls=12, **options)
    threading.setprofile(note)
    try:
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            combee.compile(dspy.Predict("question -> answer"), trainset=rows[:4], valset=rows[4:])
    finally:
        threading.setprofile(None)
    assert workers
    assert trackers
    assert not workers & trackers
