"""Holds the limit on the wall-clock time of a run."""

from __future__ import annotations

import time


class BudgetReached(Exception):  # noqa: N818 - ends an update, never leaves the search
    """A limit leaves no room for the next effect; the message says which."""


class TimeBudget:
    """Counts the seconds of a run, those of its earlier parts included.

    Args:
        limit: Seconds that the run may take; ``None`` for no limit.
        seconds: How long its earlier parts took.

    Attributes:
        reserve: Seconds at the end that are for the held-out set.
    """

    def __init__(self, limit: float | None, seconds: float) -> None:
        self._seconds = limit
        self._began = time.monotonic() - seconds
        self.reserve = 0.0

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, those of its earlier parts included."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float | None:
        """Seconds until the run has to end; ``None`` without a limit."""
        return None if self._seconds is None else self._seconds - self.seconds

    def check_time(self) -> None:
        """Hold the limit on time: before a reservation, and again once an effect has its slot.

        Raises:
            BudgetReached: The time is over.
        """
        if self.is_over:
            raise BudgetReached(self.time_is_over())

    @property
    def is_over(self) -> bool:
        """Whether nothing more may begin, but for the held-out set."""
        return self.left is not None and self.left <= self.reserve

    def reserve_heldout(self, seconds: float) -> None:
        """Keep time for the held-out set: twice what it may take and a second, at most half."""
        if self._seconds is not None:
            self.reserve = min(2 * seconds + 1.0, self._seconds / 2)

    def time_is_over(self) -> str:
        """Return why nothing more may begin, in words."""
        seconds = f"{self.seconds:.2g}" if self.seconds < 10 else f"{self.seconds:.0f}"
        passed = f"{seconds} of {self._seconds:g} seconds have passed"
        held_back = f", and {self.reserve:.2g} are for the held-out set" if self.reserve else ""
        return passed + held_back
