"""The scheduler's one thread: says what was decided, and rings when something is due."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Teller"]

_LATENCY = 0.25
"""Seconds that a note may wait for others, so that thousands of dispatches a second wake the thread four times."""

_MANY = 512


class Teller:
    """Carries notes and alarms to a thread of its own, which starts with the first of them. Thread-safe.

    Neither :meth:`note` nor :meth:`ring_at` waits for what the thread does.

    Args:
        tell: Called with the notes since the last call, in order. Must not raise.
        ring: Called when an alarm is due. Must not raise.
        clock: What alarms are set by, in seconds.
    """

    def __init__(self, tell: Callable[[list[Any]], None], ring: Callable[[], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._ring = ring
        self._clock = clock
        self._changed = threading.Condition()
        # Held while notes are told, so that they are told in order.
        self._telling = threading.Lock()
        self._notes: list[Any] = []
        self._told_at = math.inf
        self._alarm = math.inf
        self._closing = False
        self._thread: threading.Thread | None = None

    def note(self, note: Any) -> None:
        """Have something told, soon."""
        with self._changed:
            self._notes.append(note)
            if len(self._notes) == 1:
                self._told_at = self._clock() + _LATENCY
                self._wake()
            elif len(self._notes) == _MANY:
                self._told_at = -math.inf
                self._wake()

    def ring_at(self, when: float) -> None:
        """Have ``ring`` called at this time, unless it is to be called earlier."""
        with self._changed:
            if when < self._alarm:
                self._alarm = when
                self._wake()

    def _wake(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="combee-scheduler", daemon=True)
            self._thread.start()
        else:
            self._changed.notify()

    def flush(self) -> None:
        """Tell in this thread what has been noted until now; it has been told when this returns."""
        with self._telling:
            with self._changed:
                notes, self._notes, self._told_at = self._notes, [], math.inf
            if notes:
                self._tell(notes)

    def close(self) -> None:
        """Tell what is left, and end the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.flush()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (wait := min(self._alarm, self._told_at) - self._clock()) > 0:
                    self._changed.wait(None if math.isinf(wait) else wait)
                if self._closing:
                    return
                now = self._clock()
                due = self._told_at <= now
                rings = self._alarm <= now
                if rings:
                    self._alarm = math.inf
            if due:
                self.flush()
            if rings:
                self._ring()
