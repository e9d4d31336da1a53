"""Shows a run as it happens."""

from __future__ import annotations

from typing import ClassVar

from combee_dspy.journal import Reader
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker

__all__ = ["Progress"]


@parameters
class Progress(Tracker):
    """Says on standard error what a run is doing and what it has cost."""

    name: ClassVar[str] = "progress"

    def open(self, reader: Reader, run: int) -> Follower:
        """Return the display of one run."""
        return _Display()


class _Display(Follower):
    def follow(self) -> None: ...
