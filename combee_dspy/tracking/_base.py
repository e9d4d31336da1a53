"""Trackers of a run, the followers that they make, and the threads on which these read."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import ClassVar

from combee_dspy.journal import Reader
from combee_dspy.strategies import Strategy

_logger = logging.getLogger(__name__)

_EVERY = 0.5
_OTHER = re.compile(r"[^\w.-]+")
_LONGEST, _INTERRUPTED = 30.0, 0.3


class Follower(ABC):
    """Follows one run by reading its journal, on one thread.

    Attributes:
        where: What a person opens or runs to look at what was recorded, without keys; empty where
            there is nothing.
    """

    where: str = ""

    @abstractmethod
    def follow(self) -> None:
        """Read what is new. Called about twice a second, and once more when the run's end is on
        disk.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what it holds. Called once, after the last :meth:`follow` or where one has
        raised.
        """


class Tracker(Strategy):
    """Makes the follower that shows or records one run."""

    kind: ClassVar[str] = "tracker"

    def check(self) -> None:
        """Refuse, before the run buys anything, what can be known to fail. Returns at once.

        Raises:
            CombeeError: What it needs is not installed.
        """

    @abstractmethod
    def open(self, reader: Reader, run: int) -> Follower:
        """Return a follower of one run. Called on the thread that follows.

        Args:
            reader: Of the run's journal, for that thread. Borrowed.
            run: The run's id.
        """


def default_trackers() -> tuple[Tracker, ...]:
    """Return who follows a run that names nobody: a display, which is a panel on a terminal and
    lines elsewhere.
    """
    from combee_dspy.tracking._progress import Progress

    return (Progress(),)


@asynccontextmanager
async def track(
    path: Path,
    run: int,
    trackers: Sequence[Tracker],
    at_most: Callable[[], float | None] = lambda: None,
) -> AsyncIterator[None]:
    """Let trackers follow a run while the body runs, and see its end after it.

    They never break the run: one that raises is reported once and left out from
    then on. Leaving waits until they have read the run's end, 30 seconds at
    most, and next to nothing after an interrupt; the event loop is free meanwhile. ``at_most``
    returns in the end how many seconds there are for it; ``None`` for no other limit.
    """
    over = threading.Event()
    threads = [
        threading.Thread(
            # In the caller's context, where an active MLflow run is the parent.
            target=contextvars.copy_context().run,
            args=(_follow, path, run, tracker, over),
            name=f"combee-{tracker.name}",
            daemon=True,
        )
        for tracker in trackers
    ]
    longest = _LONGEST
    try:
        for thread in threads:
            thread.start()
        yield
    except asyncio.CancelledError:
        longest = _INTERRUPTED
        raise
    finally:
        over.set()
        if (most := at_most()) is not None:
            longest = min(longest, most)
        if threads:
            await asyncio.to_thread(_wait_for, threads, longest)


def _wait_for(threads: Sequence[threading.Thread], longest: float) -> None:
    until = time.monotonic() + longest
    # One that could not start is not alive either.
    for thread in filter(threading.Thread.is_alive, threads):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            _logger.warning("%s is still busy after the run's end. It is left alone.", thread.name)


def _follow(path: Path, run: int, tracker: Tracker, over: threading.Event) -> None:
    try:
        with Reader(path) as reader, closing(tracker.open(reader, run)) as follower:
            while not over.wait(_EVERY):
                follower.follow()
            follower.follow()
        if follower.where:
            _logger.info("Tracker %r has recorded the run: %s", tracker.name, follower.where)
    except Exception as error:  # noqa: BLE001 - a fault of tracking must reach a person, and not the run
        from combee_dspy.tracking._text import cleaner, one_line

        message = one_line(cleaner()(f"{type(error).__name__}: {error}"), 300)
        _logger.warning("Tracker %r has stopped following the run: %s", tracker.name, message)


def page_file(journal: Path, run: int, name: str) -> Path:
    """Return where a run's page lies: beside its journal, where several tasks have one each."""
    return journal.with_name(
        "report.html" if name == "main" else f"report-{run}-{_OTHER.sub('_', name)[:60]}.html"
    )
