"""What the loop knows of an update that is under way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from combee_dspy.search._update import Plan

__all__ = ["Update", "future"]


def future() -> asyncio.Future[None]:
    """Return a future of the running loop."""
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class Update:
    """One update under way.

    Attributes:
        plan: What it runs.
        before: The update before it, if any.
        proposed: Done when it has proposed.
        gate: Done when it may commit: when every update that must not know of it has begun.
        committed: Done when it is committed.
        began, started: When it began: monotonic seconds, and Unix time.
        task: What carries it out.
        selected: Done when it is known what it edits.
    """

    plan: Plan
    before: Update | None
    proposed: asyncio.Future[None] = field(default_factory=future)
    gate: asyncio.Future[None] = field(default_factory=future)
    committed: asyncio.Future[None] = field(default_factory=future)
    began: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None
    selected: asyncio.Future[None] = field(default_factory=future)
