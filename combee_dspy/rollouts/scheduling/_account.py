"""What a scheduler has done, by lane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Books", "LaneAccount", "LaneCounts", "ScheduleAccount"]


@dataclass(frozen=True, slots=True)
class LaneAccount:
    """What became of one lane's tasks.

    ``submitted == waiting + in_flight + finished + failed + cancelled + dropped`` at any time.

    Attributes:
        submitted: Tasks that were submitted.
        waiting: Tasks that wait now.
        in_flight: Tasks that are with the inner session, or that a waiting worker does, now.
        started: Dispatches to the inner session; a task that was rolled back counts again.
        helped: Tasks done by a worker that waited for them, in its own slot.
        finished: Tasks with a result.
        failed: Tasks with an exception.
        cancelled: Tasks that their owner cancelled (a worker that does them itself cancels them first), or the end.
        dropped: Tasks that were cancelled in favour of more urgent ones.
        rolled_back: How often a task was taken back and queued again.
        busy_seconds: Seconds in workers, of tasks in flight too. Of helped tasks none: they are in those of who helped.
        waited_seconds: Seconds between submission and dispatch, together.
    """

    submitted: int = 0
    waiting: int = 0
    in_flight: int = 0
    started: int = 0
    helped: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    dropped: int = 0
    rolled_back: int = 0
    busy_seconds: float = 0.0
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ScheduleAccount:
    """What a scheduler has done until now.

    Attributes:
        lanes: By lane.
        elapsed: Seconds since it was made, to its end where it has ended.
        slot_seconds: The limit summed over those seconds.
    """

    lanes: Mapping[str, LaneAccount]
    elapsed: float
    slot_seconds: float

    @property
    def busy_seconds(self) -> float:
        """Seconds in workers, all lanes together."""
        return sum(lane.busy_seconds for lane in self.lanes.values())

    @property
    def utilisation(self) -> float:
        """Share of the slots that was in use: busy seconds over slot-seconds, 0 where there were none."""
        return self.busy_seconds / self.slot_seconds if self.slot_seconds > 0 else 0.0


class LaneCounts:
    """Counts of one lane, as they change; see :class:`LaneAccount`."""

    __slots__ = (
        "busy_seconds",
        "cancelled",
        "dropped",
        "failed",
        "finished",
        "helped",
        "in_flight",
        "rolled_back",
        "started",
        "submitted",
        "waited_seconds",
        "waiting",
    )

    def __init__(self) -> None:
        self.submitted = self.waiting = self.in_flight = self.started = self.helped = 0
        self.finished = self.failed = self.cancelled = self.dropped = self.rolled_back = 0
        self.busy_seconds = self.waited_seconds = 0.0


class Books:
    """Counts by lane, and slots over time. Not thread-safe.

    Args:
        lanes: The lanes.
        slots: The limit to begin with.
        now: The time.
    """

    def __init__(self, lanes: Iterable[str], slots: int, now: float) -> None:
        self.lanes = {name: LaneCounts() for name in lanes}
        self.slots = slots
        self._made = self._counted = now
        self._slot_seconds = 0.0

    def count_slots(self, now: float, slots: int) -> int:
        """Say what the limit is from now on; return what it was."""
        self._slot_seconds += self.slots * (now - self._counted)
        self._counted = now
        before, self.slots = self.slots, slots
        return before

    def account(self, now: float, running: Iterable[tuple[str, float]]) -> ScheduleAccount:
        """Return the account.

        Args:
            now: The time.
            running: Lane and begin of each task in a worker.
        """
        busy = {name: lane.busy_seconds for name, lane in self.lanes.items()}
        for name, began in running:
            busy[name] += now - began
        lanes = {
            name: LaneAccount(
                **{field: getattr(lane, field) for field in LaneCounts.__slots__} | {"busy_seconds": busy[name]}
            )
            for name, lane in self.lanes.items()
        }
        return ScheduleAccount(lanes, now - self._made, self._slot_seconds + self.slots * (now - self._counted))
