"""Who follows a run: trackers, and the followers that they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from combee_dspy.journal import Reader
from combee_dspy.strategies import Strategy

__all__ = ["Follower", "Tracker"]


class Follower(ABC):
    """Follows one run by reading its journal, on one thread.

    Attributes:
        where: What a person opens or runs to look at what was recorded, without keys; empty where there is nothing.
    """

    where: str = ""

    @abstractmethod
    def follow(self) -> None:
        """Read what is new. Called about twice a second, and once more when the run's end is on disk."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what it holds. Called once, after the last :meth:`follow` or where one has raised."""


class Tracker(Strategy):
    """Makes the follower that shows or records one run."""

    kind: ClassVar[str] = "tracker"

    def check(self) -> None:
        """Refuse, before the run buys anything, what can be known to fail. Returns at once.

        Raises:
            CombeeError: What it needs is not installed.
        """

    @abstractmethod
    def open(self, reader: Reader, run: int) -> Follower:
        """Return a follower of one run. Called on the thread that follows.

        Args:
            reader: Of the run's journal, for that thread. Borrowed.
            run: The run's id.
        """
