"""Who listens to a run: hooks, and the trackers that make them."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from combee_dspy.events import Event
from combee_dspy.strategies import Strategy

__all__ = ["Hook", "Tracker"]


class Hook:
    """Hears every event of a run. The methods of this base do nothing.

    ``handle`` is called from one thread at a time, in the order of emission.
    A hook that raises is reported and skipped from then on.
    """

    def handle(self, event: Event) -> None:
        """Hear one event."""

    def close(self) -> None:
        """Finish: no event follows. Called exactly once, also after an error."""


class Tracker(Strategy):
    """Makes the hook that records one run somewhere."""

    kind: ClassVar[str] = "tracker"

    @abstractmethod
    def open(self) -> Hook:
        """Return a hook for one run. Called before the first event.

        Raises:
            ArgumentValueError: What it records to cannot be reached or is not installed.
        """
