"""Looking for garbage less often while rollouts run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OBJECTS", "rarely_collected"]

OBJECTS = 20_000
"""Containers that are made, net of those let go, before Python looks among them for cycles: some megabytes."""

_LOCK = threading.Lock()
_INSIDE = 0
_BEFORE = (0, 0, 0)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Have Python look for cycles of garbage less often, for a ``with`` block, in the whole process.

    It looks whenever 700 containers (the default) have been made that are still there: with
    many rollouts in flight, that is every few of them. What it finds in use it soon looks through
    again, together with everything that was ever imported. Rollouts on an event loop, whose
    coroutines are containers too, spent a third of their time on that, and they leave no cycles.

    Blocks may overlap. Whoever collects more rarely already, or never, keeps that.
    """
    global _INSIDE, _BEFORE
    with _LOCK:
        _INSIDE += 1
        if _INSIDE == 1:
            _BEFORE = gc.get_threshold()
            if 0 < _BEFORE[0] < OBJECTS:
                gc.set_threshold(OBJECTS, *_BEFORE[1:])
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE -= 1
            # Somebody may have chosen another number meanwhile.
            if _INSIDE == 0 and gc.get_threshold() == (OBJECTS, *_BEFORE[1:]):
                gc.set_threshold(*_BEFORE)
