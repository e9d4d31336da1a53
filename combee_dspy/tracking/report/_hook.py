"""The report of a run, gathered while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from combee_dspy.events import Event
from combee_dspy.tracking._base import Hook
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking.report._collect import Collector
from combee_dspy.tracking.report._data import ReportData

__all__ = ["ReportHook"]


class ReportHook(Hook):
    """Hears a run and holds what its report shows; writes it as one HTML file at the end where a path is given.

    Keeps bounded data: sums of each iteration, candidates' texts and scan
    nodes up to a budget, and the few most telling rollouts.

    Args:
        path: The file to write when the run is over, also after an error; ``None`` writes none.
        redactor: Takes keys out of texts; by default one that knows this process's.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        redactor: Redactor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = None if path is None else Path(path)
        self._clock = clock
        self._collector = Collector(redactor)

    def handle(self, event: Event) -> None:
        """Take one event into account."""
        self._collector.hear(event, self._clock())

    def data(self) -> ReportData:
        """Return what the report shows. Call it when no event is being delivered."""
        return self._collector.data()

    def html(self) -> str:
        """Return the report as one HTML page (see :func:`render`)."""
        from combee_dspy.tracking.report._page import render

        return render(self.data())

    def close(self) -> None:
        """Write the file, where one is wanted."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.part")
        part.write_text(self.html(), encoding="utf-8")
        part.replace(self.path)
        self.where = str(self.path)
