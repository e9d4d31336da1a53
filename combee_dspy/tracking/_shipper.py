"""Follows a journal and tells MLflow what it says: exactly once, whoever dies in between."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking._fold import Fold, Target
from combee_dspy.tracking._journal import Entry, Tail, files_of
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._store import Place, read_json, write_json
from combee_dspy.tracking._writer import Writer, refused_for_good
from combee_dspy.tracking._writes import Write, summary_of

__all__ = ["SHIPPED", "Shipper", "ShipperThread", "sole_shipper"]

_logger = logging.getLogger(__name__)

SHIPPED = "shipped.json"
"""Where a journal says which of its lines have been told."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LOOKS = 5.0


class Shipper:
    """Reads a journal from its beginning and does the writes of the lines that were not acknowledged.

    After the writes of a line are done, the line is acknowledged in a file.
    What was not acknowledged is done again, and is then the same (see
    :class:`~combee_dspy.tracking._writer.Writer`). An acknowledgement may be
    lost, on a full disk for example, so any line that was there before this
    object may have been told. Used by one thread.

    Args:
        folder: The journal's.
        place: The MLflow run.
        target: What the fold knows of it.
        experiment: The experiment's name.
        own: The file that this process writes and ends itself; the others are whole.
    """

    def __init__(self, folder: Path, place: Place, target: Target, experiment: str, own: Path | None = None) -> None:
        self.folder = folder
        self.place = place
        self._own = own
        self._fold = Fold(folder, target)
        acknowledged = read_json(folder / SHIPPED) or {}
        if acknowledged.get("run_id") != place.run_id:
            acknowledged = {}
        self._done = (str(acknowledged.get("file", "")), int(acknowledged.get("line", 0)))
        self._writer = Writer(place, experiment, acknowledged.get("links"))
        # Bytes that were there before: nobody else has told of what comes after them.
        self._old = {file.name: file.stat().st_size for file in files_of(folder)}
        self._failed = False
        self._tails: dict[str, Tail] = {}
        self._waiting: Iterator[Entry] | None = None
        # Each with the line to acknowledge after it, and whether it may have been done before.
        self._pending: list[tuple[Write, tuple[str, int] | None, bool]] = []
        self.ended = False
        self.left_out = 0
        self.moved = 0

    @property
    def rollouts(self) -> int:
        """Rollouts read so far."""
        return self._fold.rollouts

    def step(self) -> bool:
        """Do the writes of the lines that there are now.

        Returns:
            Whether all of them are done; ``False`` where MLflow does not answer: try again later.
        """
        while True:
            if not self._flush():
                return False
            if self._waiting is None:
                self._waiting = self._lines()
            entry = next(self._waiting, None)
            if entry is None:
                self._waiting = None
                return True
            self._take(entry)

    def finish(self) -> bool:
        """Complete what was heard, as far as it was heard, and return whether all is done."""
        if not self.step():
            return False
        if not self.ended:
            self.ended = True
            self._pending += [(write, None, True) for write in self._fold.finish()]
        return self._flush()

    def _take(self, entry: Entry) -> None:
        place = (entry.file, entry.number)
        writes = self._fold.feed(entry)
        self.ended = entry.kind == "end" and (self._own is None or entry.file == self._own.name)
        if writes and place > self._done:
            old = entry.offset < self._old.get(entry.file, 0)
            self._pending += [(write, None, old) for write in writes[:-1]]
            self._pending.append((writes[-1], place, old))

    def _lines(self) -> Iterator[Entry]:
        for file in files_of(self.folder):
            tail = self._tails.setdefault(file.name, Tail(file))
            yield from tail.read(final=file != self._own)

    def _flush(self) -> bool:
        if not self._pending:
            return True
        from mlflow.exceptions import MlflowException

        while self._pending:
            write, place, old = self._pending[0]
            try:
                self._writer.do(write, old or self._failed)
            except (MlflowException, OSError) as error:
                if not refused_for_good(error):
                    self._failed = True
                    _logger.debug("MLflow does not take %s: %s", summary_of(write), _said(error))
                    return False
                self.left_out += 1
                _logger.warning("MLflow refused %s, which is left out: %s", summary_of(write), _said(error))
            self.moved += 1
            self._pending.pop(0)
            if place is not None:
                self._acknowledge(place)
                # What comes now belongs to a line that has not been begun here.
                self._failed = False
        return True

    def _acknowledge(self, place: tuple[str, int]) -> None:
        self._done = place
        data: dict[str, Any] = {"run_id": self.place.run_id, "file": place[0], "line": place[1]}
        try:
            write_json(self.folder / SHIPPED, {**data, "links": self._writer.links})
        except OSError as error:
            # A full disk: the writes would be done again, and be the same.
            _logger.debug("not acknowledged: %s", error)


class ShipperThread:
    """Runs a shipper beside a run, and never in its way.

    Args:
        shipper: The shipper.
        clock: Monotonic seconds.
    """

    def __init__(self, shipper: Shipper, clock: Callable[[], float] = time.monotonic) -> None:
        self._shipper = shipper
        self._clock = clock
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self.complete = False
        self.cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="combee-shipper", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Say that there is something to ship. Returns at once."""
        self._wake.set()

    def close(self, patience: float, longest: float) -> bool:
        """Let it ship what is left, and return whether it did.

        Args:
            patience: Seconds to wait while MLflow does not answer.
            longest: Seconds to wait while it takes one write after the other.
        """
        self._closing.set()
        self._wake.set()
        begun = progress = self._clock()
        moved = self._shipper.moved
        while self._thread.is_alive():
            now = self._clock()
            if self._shipper.moved != moved:
                moved, progress = self._shipper.moved, now
            if now - begun > longest or now - progress > patience:
                break
            self._thread.join(0.05)
        return self.complete

    def _run(self) -> None:
        try:
            with sole_shipper(self._shipper.folder):
                self._follow()
        except Exception as error:  # noqa: BLE001 - a fault here must reach a person, and not the run
            _logger.warning("The shipper of %s has stopped: %s", self._shipper.folder, _said(error))
        finally:
            self.cpu_seconds = time.thread_time()

    def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while not self.complete:
            closing = self._closing.is_set()
            done = self._shipper.step()
            self.cpu_seconds = time.thread_time()
            if done:
                pause = _FIRST_PAUSE
                if self._failing:
                    _logger.warning("MLflow answers again.")
                self._failing = False
                if closing and self._shipper.ended:
                    self.complete = True
                    return
            elif not self._failing:
                self._failing = True
                _logger.warning("MLflow does not answer; the journal %s keeps everything.", self._shipper.folder)
            self._wake.wait(_LOOKS if done else pause)
            self._wake.clear()
            pause = pause if done else min(pause * 2, 1.0 if closing else _LONGEST_PAUSE)


@contextmanager
def sole_shipper(folder: Path) -> Iterator[None]:
    """Hold a journal's lock: two shippers would tell MLflow twice.

    Raises:
        ArgumentValueError: Another process ships this journal.
    """
    try:
        import fcntl
    except ImportError:  # Not on this system: the user is trusted to start one at a time.
        yield
        return
    with (folder / ".shipping").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = "Wait until the run that writes it is over."
            raise ArgumentValueError("path", str(folder), "is being shipped by another process", remedy) from error
        yield


def _said(error: Exception) -> str:
    return Redactor().text(f"{type(error).__name__}: {error}")[:300]
