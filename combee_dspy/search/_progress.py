"""How far a run's updates have come, and the waits of one update for others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Literal

from combee_dspy.search._time_budget import BudgetReached

Stage = Literal["proposed", "ready", "committed"]


class Progress:
    """Counts the updates that have reached each stage. Lives on the search's loop.

    Updates reach a stage in the order of their numbers, so one count is enough. A ready update may
    commit: the updates that must not see it have begun.

    Attributes:
        cut: The first update that a budget ended, and why; ``None`` while there is none.
    """

    def __init__(self) -> None:
        self._counts: Counter[Stage] = Counter()
        self._moved = asyncio.Event()
        self._error: BaseException | None = None
        self.cut: tuple[int, BudgetReached] | None = None

    def reach(self, stage: Stage, count: int) -> None:
        """Note that the first ``count`` updates have reached a stage."""
        self._counts[stage] = max(self._counts[stage], count)
        self._wake()

    def fail(self, step: int, error: BaseException) -> None:
        """Note an error: of a budget it ends this update and later ones, else the whole run."""
        if not isinstance(error, BudgetReached):
            self._error = self._error or error
        elif self.cut is None or step < self.cut[0]:
            self.cut = (step, error)
        self._wake()

    async def wait(self, stage: Stage, count: int) -> None:
        """Wait until the first ``count`` updates have reached a stage.

        Raises:
            BudgetReached: A budget has ended one of them.
            Exception: The error that ends the run.
        """
        while not self._has_reached(stage, count):
            if self.cut is not None and self.cut[0] < count:
                raise self.cut[1]
            await self._moved.wait()

    async def wait_for_commits(self, count: int) -> None:
        """Wait until the first ``count`` updates are committed, or all before the one that a budget
        ended.

        Raises:
            Exception: The error that ends the run.
        """
        while not self._has_reached("committed", count if self.cut is None else self.cut[0]):
            await self._moved.wait()

    def _has_reached(self, stage: Stage, count: int) -> bool:
        if self._error is not None:
            raise self._error
        return self._counts[stage] >= count

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
