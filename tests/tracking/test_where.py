from __future__ import annotations

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking import Hook, RememberingTracker, Tracker


class Noted(Hook):
    def __init__(self, where: str) -> None:
        self.where = where


class Notes(Tracker):
    name = "notes"

    def __init__(self, *hooks: Hook) -> None:
        self.hooks = list(hooks)

    def open(self, journal: object = None) -> Hook:
        if not self.hooks:
            raise ArgumentValueError("tracker", "notes", "has no paper", "Buy some.")
        return self.hooks.pop(0)


def test_a_hook_has_nothing_to_look_at_unless_it_says_so() -> None:
    assert Hook().where == ""


def test_the_last_hook_is_remembered() -> None:
    first, second = Noted("open one"), Noted("open two")
    tracker = RememberingTracker(Notes(first, second))
    assert tracker.where == ""
    assert tracker.open() is first
    assert tracker.where == "open one"
    assert tracker.open() is second
    assert tracker.where == "open two"


def test_a_tracker_that_cannot_open_says_so_itself() -> None:
    tracker = RememberingTracker(Notes())
    with pytest.raises(ArgumentValueError, match="no paper"):
        tracker.open()
    assert tracker.where == ""
