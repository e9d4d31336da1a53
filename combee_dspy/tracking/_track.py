"""Drives the followers of a run from one thread beside it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from combee_dspy.journal import Reader
from combee_dspy.lms.redact import scrub
from combee_dspy.tracking._base import Follower, Tracker

__all__ = ["default_trackers", "track"]

_logger = logging.getLogger(__name__)

_EVERY = 0.5
_ENDING = 5.0  # seconds within which the last rows of a run are on disk: its writer commits what is waiting at once


def default_trackers() -> tuple[Tracker, ...]:
    """Return who follows a run that names nobody: a display, where standard error is a terminal."""
    from combee_dspy.tracking._progress import Progress

    return (Progress(),) if sys.stderr.isatty() else ()


@contextmanager
def track(path: Path, run: int, trackers: Sequence[Tracker]) -> Iterator[None]:
    """Let trackers follow a run while the body runs, and see its end after it.

    They never slow the run and never break it: one that raises is reported once and left out from then on.

    Args:
        path: The journal's file.
        run: The run's id.
        trackers: Who follows.

    Raises:
        CombeeError: What a tracker needs is not installed; nothing has begun.
    """
    for tracker in trackers:
        tracker.check()
    if not trackers:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(path, run, trackers, over), name="combee-tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(path: Path, run: int, trackers: Sequence[Tracker], over: threading.Event) -> None:
    try:
        with Reader(path) as reader:
            followers = [one for tracker in trackers if (one := _opened(tracker, reader, run)) is not None]
            while followers and not over.wait(_EVERY):
                followers = [one for one in followers if _followed(one)]
            over.wait()
            _wait_for_end(reader, run)
            for follower in followers:
                if _followed(follower):
                    _closed(follower)
    except Exception as error:  # noqa: BLE001 - a fault of tracking must reach a person, and not the run
        _report("Tracking", error)


def _opened(tracker: Tracker, reader: Reader, run: int) -> Follower | None:
    try:
        return tracker.open(reader, run)
    except Exception as error:  # noqa: BLE001 - see _follow
        _report(f"Tracker {tracker.name!r}", error)
        return None


def _followed(follower: Follower) -> bool:
    try:
        follower.follow()
    except Exception as error:  # noqa: BLE001 - see _follow
        _report(type(follower).__name__, error)
        _closed(follower)
        return False
    return True


def _closed(follower: Follower) -> None:
    try:
        follower.close()
    except Exception as error:  # noqa: BLE001 - see _follow
        _report(type(follower).__name__, error)


def _wait_for_end(reader: Reader, run: int) -> None:
    until = time.monotonic() + _ENDING
    while time.monotonic() < until and reader.rows("SELECT 1 FROM run WHERE id = ? AND state = 'running'", (run,)):
        time.sleep(0.01)


def _report(who: str, error: Exception) -> None:
    _logger.warning("%s has stopped following the run: %s", who, scrub(f"{type(error).__name__}: {error}")[:300])
