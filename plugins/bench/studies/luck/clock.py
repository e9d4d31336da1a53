"""A clock that moves once nothing runs any more, so that the client's own work takes no time.

Wall-clock on a busy machine measures its neighbours. Linux alone: it looks at the state of threads.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from pathlib import Path

__all__ = ["Clock"]

_THREADS = Path("/proc/self/task")
_LOOK_SECONDS = 0.002
_QUIET_LOOKS = 2


class Clock:
    """Serves so many callers at once, in order of arrival, by its own time. Thread-safe.

    Attributes:
        now: Seconds so far.
    """

    def __init__(self, slots: int) -> None:
        self.now = 0.0
        self._free = slots
        self._queue: deque[tuple[float, threading.Event]] = deque()
        self._served: list[tuple[float, int, threading.Event]] = []
        self._numbers = itertools.count()
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    def __enter__(self) -> Clock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def serve(self, seconds: float) -> None:
        """Wait for a slot, and hold it for so many seconds."""
        ended = threading.Event()
        with self._guard:
            if self._free:
                self._start(seconds, ended)
            else:
                self._queue.append((seconds, ended))
        ended.wait()

    def _start(self, seconds: float, ended: threading.Event) -> None:
        self._free -= 1
        heapq.heappush(self._served, (self.now + seconds, next(self._numbers), ended))

    def _run(self) -> None:
        own = threading.get_native_id()
        quiet = 0
        while not self._over.is_set():
            quiet = quiet + 1 if self._is_quiet(own) else 0
            if quiet >= _QUIET_LOOKS:
                self._move()
                quiet = 0
            time.sleep(_LOOK_SECONDS)

    def _move(self) -> None:
        with self._guard:
            if self._served:
                self.now, _, ended = heapq.heappop(self._served)
                self._free += 1
                if self._queue:
                    self._start(*self._queue.popleft())
                ended.set()

    def _is_quiet(self, own: int) -> bool:
        """Return whether no other thread runs, waits for a processor or for a disk."""
        for thread in _THREADS.iterdir():
            if thread.name != str(own):
                try:
                    state = (thread / "stat").read_text().rpartition(") ")[2][0]
                except OSError:
                    continue  # it has ended
                if state != "S":
                    return False
        return True
