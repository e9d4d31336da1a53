"""CPU time of calls that many threads make, without what the garbage collector does to whoever is there."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Collections", "CpuMeter"]


class Collections:
    """CPU seconds of full garbage collections, by the thread that each struck.

    A full collection walks all that the process holds: some 0.4 s, most of it for the modules
    of DSPy and MLflow. It strikes whoever allocates at that moment, for what everybody has
    allocated since the last one, so a single one would say more about a part than all else
    that is measured. The lesser ones, which follow from what a part itself allocates, are
    left where they are.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._by_thread: dict[str, list[float]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the collector in this ``with`` block."""
        gc.callbacks.append(self._hear)
        try:
            yield
        finally:
            gc.callbacks.remove(self._hear)

    def here(self) -> list[float]:
        """Return this thread's sum, which goes on growing: its only item."""
        found: list[float] | None = getattr(self._own, "sum", None)
        if found is None:
            found = self._own.sum = self._by_thread.setdefault(threading.current_thread().name, [0.0])
        return found

    def of(self, thread: str) -> float:
        """Return the seconds of the threads of a name."""
        return self._by_thread.get(thread, [0.0])[0]

    def _hear(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._own.begun = time.thread_time()
        else:
            self.here()[0] += time.thread_time() - self._own.begun


class CpuMeter:
    """Adds up CPU seconds that threads spend in calls, each in its own sum, so that no lock is needed.

    Args:
        collections: Full collections, which are kept apart.
    """

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self._own = threading.local()
        self._sums: list[list[float]] = []

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same call, timed."""

        def timing(*args: Any, **kwargs: Any) -> Any:
            own, collected = self._sum(), self._collections.here()
            before, begun = collected[0], time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                spent, struck = time.thread_time() - begun, collected[0] - before
                own[0] += spent - struck
                own[1] += struck

        return timing

    def _sum(self) -> list[float]:
        found: list[float] | None = getattr(self._own, "sum", None)
        if found is None:
            found = self._own.sum = [0.0, 0.0]
            self._sums.append(found)
        return found

    @property
    def seconds(self) -> float:
        """All threads together, without full collections."""
        return sum(one[0] for one in self._sums)

    @property
    def collected(self) -> float:
        """Full collections inside the calls, in seconds."""
        return sum(one[1] for one in self._sums)
