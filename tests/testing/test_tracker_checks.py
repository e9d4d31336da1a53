"""Each check for trackers passes a right one and fails a wrong one, with a message that teaches."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from combee_dspy.events import ErrorRaised, Event, IterationFinished, RolloutFinished, RunFinished, RunStarted
from combee_dspy.testing import ConformanceError, checks_for
from combee_dspy.testing.checks import trackers
from combee_dspy.testing.doubles import run_events
from combee_dspy.tracking import Hook, Redactor, Tracker


class Lines(Hook):
    """Writes each event, without keys."""

    def __init__(self, path):
        self.file = path.open("a", encoding="utf-8")
        self.where = str(path)

    def handle(self, event):
        self.file.write(f"{Redactor().text(repr(event))}\n")

    def close(self):
        self.file.close()


class Right(Tracker):
    """Writes lines.

    Args:
        path: The file.
    """

    name: ClassVar[str] = "right"

    def __init__(self, path="lines.log"):
        self.path = path

    def open(self, journal=None):
        """Return a hook."""
        return Lines(Path(self.path))


def opens(make):
    return type("Wrong", (Right,), {"open": lambda self, journal=None: make(journal)})()


def hears(handle=None, close=None, where=""):
    methods = {"where": where}
    methods |= {"handle": lambda self, event: handle(event)} if handle else {}
    methods |= {"close": lambda self: close()} if close else {}
    hook = type("WrongHook", (Hook,), methods)
    return opens(lambda journal: hook())


def needs_prediction(event: Event):
    if isinstance(event, RolloutFinished):
        event.rollout.prediction.toDict()


def needs_cost(event: Event):
    if isinstance(event, RunFinished):
        return round(event.costs["by_role"]["task"]["dollars"], 2)
    return None


def mutates(event: Event):
    if isinstance(event, RunStarted):
        event.specs["seen"] = True


def writes_keys(event: Event):
    if isinstance(event, ErrorRaised):
        Path("errors.txt").write_text(event.error, encoding="utf-8")


class Shares(Right):
    """Keeps one hook for all runs."""

    ONE = Hook()

    def open(self, journal=None):
        return self.ONE


class NeedsRollouts(Hook):
    """Divides by what it has not heard."""

    def __init__(self):
        self.rollouts = 0

    def handle(self, event):
        self.rollouts += isinstance(event, IterationFinished)

    def close(self):
        return 1 / self.rollouts and None


def no_journal(journal):
    if journal is None:
        raise RuntimeError("a journal is needed")
    return Hook()


def odd_journal(journal):
    if journal is not None:
        journal.append("mine")
    return Hook()


WRONG = [
    (opens(lambda journal: None), "check_hears_a_whole_run", "NoneType"),
    (opens(no_journal), "check_hears_a_whole_run", "a journal is needed"),
    (hears(where="two\nlines"), "check_hears_a_whole_run", "one line"),
    (hears(needs_prediction), "check_hears_a_whole_run", "AttributeError"),
    (hears(needs_cost), "check_hears_a_whole_run", "TypeError"),
    (hears(lambda event: True), "check_hears_a_whole_run", "nothing from `handle`"),
    (opens(lambda journal: NeedsRollouts()), "check_hears_a_run_that_ends_early", "ZeroDivisionError"),
    (opens(odd_journal), "check_takes_the_runs_journal", "AttributeError"),
    (Shares(), "check_runs_have_hooks_of_their_own", "the same object twice"),
    (hears(mutates), "check_leaves_events_alone", "RunStarted"),
    (hears(writes_keys), "check_keeps_keys_to_itself", "errors.txt"),
]


@pytest.mark.parametrize("check", checks_for(Right()), ids=lambda check: check.__name__)
def test_a_right_tracker_passes(check):
    check(Right())


@pytest.mark.parametrize(("strategy", "check", "said"), WRONG, ids=[f"{c}-{s}" for _, c, s in WRONG])
def test_a_wrong_tracker_is_told(strategy, check, said):
    with pytest.raises(ConformanceError) as caught:
        getattr(trackers, check)(strategy)
    assert said in str(caught.value)
    assert "to mend:" in str(caught.value)


def test_every_tracker_check_has_one_that_fails_it():
    assert {check.__name__ for check in trackers.CHECKS} == {check for _, check, _ in WRONG}


def test_checks_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for check in trackers.CHECKS:
        check(Right())
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())


def test_the_events_are_those_of_a_run():
    told = run_events(iterations=3)
    assert isinstance(told[0], RunStarted)
    assert isinstance(told[-1], RunFinished)
    assert [event.iteration for event in told] == sorted(event.iteration for event in told)
    ids = [event.rollout_id for event in told if isinstance(event, RolloutFinished)]
    assert len(ids) == len(set(ids))
    assert not [event for event in run_events(iterations=0) if isinstance(event, IterationFinished)]
