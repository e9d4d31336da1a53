"""Who listens to a run: hooks, and the trackers that make them."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from combee_dspy.events import Event
from combee_dspy.strategies import Strategy

__all__ = ["Hook", "RememberingTracker", "Tracker"]


class Hook:
    """Hears every event of a run. The methods of this base do nothing.

    ``handle`` is called from one thread at a time, in the order of emission.
    A hook that raises is reported and skipped from then on.

    Attributes:
        where: What a person opens or runs to look at what was recorded, on one
            line and without keys; empty where there is nothing to look at.
        wants: The kinds of events to be told of; ``None`` for all. Read once, when the run begins: where no
            hook wants rollouts, none of them wakes the thread that delivers events.
    """

    where: str = ""
    wants: tuple[type[Event], ...] | None = None

    def handle(self, event: Event) -> None:
        """Hear one event."""

    def close(self) -> None:
        """Finish: no event follows. Called exactly once, also after an error."""


class Tracker(Strategy):
    """Makes the hook that records one run somewhere."""

    kind: ClassVar[str] = "tracker"

    def journal_folder(self) -> Path | None:
        """Return where a run without a ``log_dir`` keeps its journal; ``None`` where this tracker needs none."""
        return None

    @abstractmethod
    def open(self, journal: Any = None) -> Hook:
        """Return a hook for one run. Called before the first event.

        Args:
            journal: The :class:`combee_dspy.tracking.Journal` that the run writes every event to before
                anything follows from it; ``None`` where it writes none.

        Raises:
            ArgumentValueError: What it records to cannot be reached or is not installed.
        """


class RememberingTracker(Tracker):
    """Hands out the hooks of another tracker and keeps the last, for who started the run to say where it is.

    A run opens its tracker itself, once its inputs are checked, and closes the
    hook; so the hook is only known afterwards. Not for several runs at once.

    Args:
        tracker: Who records.
    """

    name: ClassVar[str] = "remembering"

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.hook: Hook | None = None

    def journal_folder(self) -> Path | None:
        """Return the other tracker's."""
        return self.tracker.journal_folder()

    def open(self, journal: Any = None) -> Hook:
        """Return the other tracker's hook.

        Args:
            journal: See :meth:`Tracker.open`.

        Raises:
            ArgumentValueError: See :meth:`Tracker.open`.
        """
        self.hook = self.tracker.open(journal)
        return self.hook

    @property
    def where(self) -> str:
        """How to look at what was recorded; empty where nothing was."""
        return "" if self.hook is None else self.hook.where
