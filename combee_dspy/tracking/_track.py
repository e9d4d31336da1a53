"""Drives the followers of a run beside it, each on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from combee_dspy.journal import Reader
from combee_dspy.tracking._base import Tracker
from combee_dspy.tracking._progress import Progress
from combee_dspy.tracking._text import cleaner, one_line

__all__ = ["default_trackers", "track"]

_logger = logging.getLogger(__name__)

_EVERY = 0.5
_LONGEST = 30.0


def default_trackers() -> tuple[Tracker, ...]:
    """Return who follows a run that names nobody: a display, where standard error is a terminal."""
    return (Progress(),) if sys.stderr.isatty() else ()


class track:  # noqa: N801 - used as a statement: with track(…)
    """Let trackers follow a run while the body runs, and see its end after it.

    They never break the run: one that raises is reported once and left out from
    then on. Leaving waits until they have read the run's end, 30 seconds at
    most. ``with`` waits on the spot, ``async with`` leaves the event loop free meanwhile.

    Args:
        path: The journal's file.
        run: The run's id.
        trackers: Who follows.

    Raises:
        CombeeError: What a tracker needs is not installed; nothing has begun.
    """

    def __init__(self, path: Path, run: int, trackers: Sequence[Tracker]) -> None:
        for tracker in trackers:
            tracker.check()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=_follow, args=(path, run, one, self._over), name=f"combee-{one.name}", daemon=True)
            for one in trackers
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        until = time.monotonic() + _LONGEST
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                _logger.warning("%s is still busy with a run that is over, and is not waited for.", thread.name)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        if self._threads:
            await asyncio.to_thread(self.__exit__)


def _follow(path: Path, run: int, tracker: Tracker, over: threading.Event) -> None:
    try:
        with Reader(path) as reader:
            follower = tracker.open(reader, run)
            try:
                while not over.wait(_EVERY):
                    follower.follow()
                follower.follow()
            finally:
                follower.close()
            if follower.where:
                _logger.info("Tracker %r has recorded the run: %s", tracker.name, follower.where)
    except Exception as error:  # noqa: BLE001 - a fault of tracking must reach a person, and not the run
        said = one_line(cleaner()(f"{type(error).__name__}: {error}"), 300)
        _logger.warning("Tracker %r has stopped following the run: %s", tracker.name, said)
