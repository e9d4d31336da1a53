"""The start of a run: few effects begin before its checks have ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

__all__ = ["Start"]

# Effects that may begin beside the checks: what a wrong key or a metric that raises may cost.
_FEW = 8

Step = Callable[[], Awaitable[None]]


class Start:
    """Holds effects back while the checks of a run go on. Lives on the search's loop."""

    def __init__(self) -> None:
        self._few = 0
        self._begun: Counter[str] = Counter()
        self._opened: asyncio.Future[None] | None = None

    async def run(self, probe: Step, attempt: Step, work: Step, capacity: int) -> None:
        """Carry out work beside the checks of whether it can work.

        Where a check fails, the work is cancelled. Where both fail, the probe's error is raised:
        it is the clearest.

        Args:
            probe: Asks each LM.
            attempt: Runs the first rows. It asks first, so they are among the few that may begin.
            work: What waits, but for a few effects.
            capacity: Effects that may be in flight at once.

        Raises:
            Exception: What the probe raised, else the attempt, else the work.
        """
        # The two rows of the attempt always may.
        self._few = max(2, min(_FEW, capacity))
        self._opened = asyncio.get_running_loop().create_future()
        trial = asyncio.ensure_future(self._open_after(probe, attempt))
        tasks = [trial, asyncio.ensure_future(work())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                await task
        finally:
            await _cancel(*tasks)

    async def _open_after(self, probe: Step, attempt: Step) -> None:
        trying = asyncio.ensure_future(attempt())
        try:
            await probe()
            await trying
        finally:
            await _cancel(trying)
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        self._opened = None

    def withdraw(self) -> None:
        """Cancel what waits to begin."""
        if self._opened is not None:
            self._opened.cancel()

    async def wait(self, kind: str) -> None:
        """Wait until one more effect may begin.

        Feedback of a few rollouts is counted by itself: it takes no other rollout's place.
        """
        if self._opened is None:
            return
        counted = "feedback" if kind == "feedback" else "others"
        self._begun[counted] += 1
        if self._begun[counted] <= self._few:
            return
        await asyncio.shield(self._opened)


async def _cancel(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
