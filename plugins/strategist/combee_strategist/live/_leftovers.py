"""What servers that have ended left to the judge."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from combee_dspy.files import take_lock
from combee_dspy.journal import JOURNAL, RunHistory
from combee_strategist.canary import LabelsAwaited, Pair, RequestLabelled, open_journals
from combee_strategist.live._options import DAY, Setup

__all__ = ["Leftovers"]

_LONGEST = 7 * DAY


class Leftovers:
    """Requests that still waited for the judge when their servers ended, as journals keep them.

    One server takes all of them, for as long as it runs; then another one takes those that have no
    label yet. Thread-safe.

    Args:
        setup: Of the Live.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._release: Callable[[], None] | None = None
        self._seen: set[str] = set()
        self._mutex = threading.Lock()

    def take(self) -> list[Pair]:
        """Return what nobody has labelled, oldest first, each request once: of too many the newest.
        Nothing where another server takes it.

        Raises:
            JournalDamagedError: A journal is not as it was written.
        """
        pairs: dict[str, Pair] = {}
        with self._mutex:
            self._release = self._release or take_lock(self._setup.home / "judge.lock")
            folders = sorted(self._setup.requests.iterdir(), reverse=True) if self._release else ()
            for folder in folders:
                if folder.name not in self._seen and _has_ended(folder):
                    room = self._setup.serving.labels - len(pairs)
                    for pair in islice(self._waiting(folder), room):
                        pairs.setdefault(pair.request, pair)
                    self._seen.add(folder.name)
        waiting = sorted(pairs.values(), key=lambda pair: pair.since)
        labelled = self._labelled(waiting[0].since) if waiting else set()
        return [pair for pair in waiting if pair.request not in labelled]

    def close(self) -> None:
        """Let another server take what is left."""
        if self._release is not None:
            self._release()

    def _waiting(self, folder: Path) -> Iterator[Pair]:
        """Yield the requests of a week that waited in a journal, newest first."""
        since = self._setup.clock() - _LONGEST
        for reader in open_journals(folder):
            for entry in RunHistory(reader).entries(LabelsAwaited, newest_first=True):
                if (pair := entry.event.pair()) is not None:
                    if pair.since < since:
                        return
                    yield pair

    def _labelled(self, since: float) -> set[str]:
        """Return the requests that were labelled since then, by any server."""
        requests = set()
        for reader in open_journals(self._setup.requests):
            for entry in RunHistory(reader).entries(RequestLabelled, newest_first=True):
                if entry.event.at < since:
                    break
                requests.add(entry.event.request)
        return requests


def _has_ended(folder: Path) -> bool:
    release = take_lock(folder / f"{JOURNAL}.lock") if (folder / JOURNAL).exists() else None
    if release is not None:
        release()
    return release is not None
