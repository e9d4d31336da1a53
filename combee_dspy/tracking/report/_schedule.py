"""What the schedule did, second by second: counts in bins that widen as the run goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from combee_dspy import events
from combee_dspy.tracking._text import one_line
from combee_dspy.tracking.report._data import Release, ScheduleView, Tick

__all__ = ["BINS", "Schedule"]

BINS = 96
"""Bins at most. When there would be more, each takes in its neighbour."""

_LANES = 6
_REASONS = 12
_FIRST_WIDTH = 0.125


@dataclass
class _Bin:
    released: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    limit: int | None = None
    dropped: int = 0

    def add(self, later: _Bin) -> None:
        for lane, count in later.released.items():
            self.released[lane] = self.released.get(lane, 0) + count
        self.queued = max(self.queued, later.queued)
        self.limit = later.limit if later.limit is not None else self.limit
        self.dropped += later.dropped


@dataclass
class Schedule:
    """Hears decisions of a schedule. Memory is bounded whatever the length of the run. Not thread-safe.

    What a decision says comes from a journal: figures that are none count as nothing.
    """

    _bins: dict[int, _Bin] = field(default_factory=dict)
    _width: float = _FIRST_WIDTH
    _begun: float | None = None
    _last: float = 0.0
    _reasons: dict[str, tuple[int, int]] = field(default_factory=dict)
    _lanes: dict[str, None] = field(default_factory=dict)

    def begin(self, at: float | None) -> None:
        """Hear that the run begins, or goes on after a pause, which does not count."""
        self._begun = None if at is None else at - self._last

    def decided(self, event: events.ScheduleDecided, at: float | None) -> None:
        """Hear one decision.

        Args:
            event: It.
            at: When, in seconds from any fixed moment; ``None`` where that is not known.
        """
        found = self._read(event)
        if event.decision == "flush":
            reason = one_line(str(event.values.get("reason", "")), 120) or "–"
            if reason not in self._reasons and len(self._reasons) >= _REASONS:
                reason = "other reasons"
            times, tasks = self._reasons.get(reason, (0, 0))
            more = _count(event.values.get("batches")) or 1
            self._reasons[reason] = (times + more, tasks + sum(found.released.values()))
        if at is None:
            return
        if self._begun is None:
            self._begun = at
        self._last = max(self._last, at - self._begun)
        place = math.floor(self._last / self._width)
        while place >= BINS:
            self._widen()
            place = math.floor(self._last / self._width)
        self._bins.setdefault(place, _Bin()).add(found)

    def view(self) -> ScheduleView:
        """Return what is known so far."""
        ticks = [
            Tick(place * self._width, dict(one.released), one.queued, one.limit, one.dropped)
            for place, one in sorted(self._bins.items())
        ]
        releases = [Release(reason, times, tasks) for reason, (times, tasks) in self._reasons.items()]
        return ScheduleView(tuple(ticks), self._width, tuple(self._lanes), tuple(releases))

    def _read(self, event: events.ScheduleDecided) -> _Bin:
        values = event.values
        found = _Bin(queued=_count(values.get("queued")), limit=_count(values.get("limit")) or None)
        lanes = values.get("lanes")
        for lane, count in lanes.items() if isinstance(lanes, Mapping) else ():
            name = one_line(str(lane), 40)
            if name not in self._lanes and len(self._lanes) >= _LANES:
                name = "other"
            self._lanes.setdefault(name)
            found.released[name] = found.released.get(name, 0) + _count(count)
        found.dropped = int(event.decision == "preemption")
        return found

    def _widen(self) -> None:
        self._width *= 2
        wider: dict[int, _Bin] = {}
        for place, one in sorted(self._bins.items()):
            wider.setdefault(place // 2, _Bin()).add(one)
        self._bins = wider


def _count(value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return min(max(0, value), 10**9) if whole else 0
