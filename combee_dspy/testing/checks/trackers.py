"""Checks for trackers: one hook a run, which hears every event.

They record short runs in a folder of their own, which is the working directory
while a check runs, and is thrown away. A tracker that talks to a service needs
one: give it as a parameter.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from combee_dspy.events import ErrorRaised, Event
from combee_dspy.testing._events import run_events
from combee_dspy.testing.checks._expect import attempt, expect
from combee_dspy.tracking import Hook, Tracker

__all__ = ["CHECKS"]


@contextlib.contextmanager
def _elsewhere() -> Iterator[Path]:
    """Work in a folder of our own: a tracker writes where it is asked to, and by default below here."""
    with tempfile.TemporaryDirectory(prefix="combee-tracker-") as name, contextlib.chdir(name):
        yield Path(name)


def _open(strategy: Tracker, journal: Any = None) -> Hook:
    hook: Any = attempt(
        lambda: strategy.open(journal),
        "`open` returns a hook, with a journal and without",
        "raise ArgumentValueError only where what it records to cannot be reached",
    )
    expect(
        isinstance(hook, Hook),
        "a `combee_dspy.tracking.Hook` from `open`",
        f"{type(hook).__name__}",
        "write a subclass of Hook with `handle` and `close`, and return an object of it",
    )
    where = hook.where
    expect(
        isinstance(where, str) and "\n" not in where,
        "`hook.where`, a text of one line that says how to look at what was recorded",
        f"{where!r:.200}",
        "set self.where in the hook's constructor, or leave it out",
    )
    found: Hook = hook
    return found


def _tell(hook: Hook, events: list[Event]) -> None:
    for event in events:
        answer: Any = attempt(
            lambda event=event: hook.handle(event),  # type: ignore[misc]  # bound per loop
            f"`handle` hears every event, {type(event).__name__} among them",
            "pass over what it does not know; texts, predictions and costs may be anything, or missing",
        )
        expect(answer is None, "nothing from `handle`", f"{answer!r:.100}", "return None: nobody reads it")


def _close(hook: Hook) -> None:
    attempt(hook.close, "`close` returns, whatever came before", "finish what was begun, and raise nothing")


def check_hears_a_whole_run(strategy: Tracker) -> None:
    """A hook that raises is skipped for the rest of the run, and the record has a hole."""
    with _elsewhere():
        hook = _open(strategy)
        try:
            _tell(hook, run_events())
        finally:
            _close(hook)


def check_hears_a_run_that_ends_early(strategy: Tracker) -> None:
    """A run may be interrupted before its first event, or in its first iteration."""
    whole = run_events()
    with _elsewhere():
        for heard in (0, 1, len(whole) // 2):
            hook = _open(strategy)
            try:
                _tell(hook, whole[:heard])
            finally:
                _close(hook)


def check_takes_the_runs_journal(strategy: Tracker) -> None:
    """A run that keeps a journal offers it, so that nothing is written twice."""
    from combee_dspy.tracking import Journal

    with _elsewhere() as folder:
        journal = Journal(folder / "conformance-journal")
        try:
            hook = _open(strategy, journal)
            try:
                for event in run_events(iterations=1):
                    journal.record(event)
                    _tell(hook, [event])
            finally:
                _close(hook)
        finally:
            journal.close()


def check_runs_have_hooks_of_their_own(strategy: Tracker) -> None:
    """One tracker may record several runs at once: what belongs to a run is in its hook."""
    with _elsewhere():
        first, second = _open(strategy), _open(strategy)
        try:
            expect(
                first is not second,
                "another hook from each `open`",
                "the same object twice",
                "make the hook inside `open`, and keep none on self",
            )
            for event in run_events(iterations=1):
                _tell(first, [event])
                _tell(second, [event])
        finally:
            _close(first)
            _close(second)


def check_leaves_events_alone(strategy: Tracker) -> None:
    """Every hook of the run, the journal among them, hears the same objects."""
    given = run_events()
    before = copy.deepcopy(given)
    with _elsewhere():
        hook = _open(strategy)
        try:
            _tell(hook, given)
        finally:
            _close(hook)
    changed = sorted({type(one).__name__ for one, two in zip(given, before, strict=True) if repr(one) != repr(two)})
    expect(not changed, "events unchanged by `handle`", f"changed: {', '.join(changed)}", "copy what you change")


def check_keeps_keys_to_itself(strategy: Tracker) -> None:
    """Keys get into error messages and prompts, and from there into records that others read."""
    key = "sk-" + "conformance0123456789abcdef"
    told = [_with_key(event, key) for event in run_events(iterations=1)]
    with _elsewhere() as folder:
        hook = _open(strategy)
        try:
            _tell(hook, told)
        finally:
            _close(hook)
        # What it wrote elsewhere, such as to a service, cannot be seen from here.
        holding = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if _holds(path, key)]
    expect(
        not holding,
        "files without the key that an error message held",
        f"it is in {', '.join(holding[:5])}",
        "pass texts through combee_dspy.tracking.Redactor().text(…) before they are written",
    )


def _with_key(event: Event, key: str) -> Event:
    return replace(event, error=f"401: incorrect API key provided: {key}") if isinstance(event, ErrorRaised) else event


def _holds(path: Path, key: str) -> bool:
    return path.is_file() and key.encode() in path.read_bytes()


CHECKS = (
    check_hears_a_whole_run,
    check_hears_a_run_that_ends_early,
    check_takes_the_runs_journal,
    check_runs_have_hooks_of_their_own,
    check_leaves_events_alone,
    check_keeps_keys_to_itself,
)
