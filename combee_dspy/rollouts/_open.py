"""Slots for work that is no search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from combee_dspy.rollouts._executors import Threads
from combee_dspy.rollouts._limits import Adaptive, Fixed
from combee_dspy.rollouts._slots import Slots

# In flight at first and at most, where nobody says how many.
_START, _MOST = 16, 256


@asynccontextmanager
async def open_slots(num_threads: int | None) -> AsyncIterator[Slots]:
    """Yield slots in threads of this process.

    Args:
        num_threads: Effects in flight at most; ``None`` to find out how many the service takes.
    """
    most = _MOST if num_threads is None else num_threads
    limit = Adaptive(_START, most) if num_threads is None else Fixed(most)
    slots = Slots(Threads().start(most), limit)
    try:
        yield slots
    finally:
        await slots.close()
