"""What the simulated service counted: the truth that a run's books are checked against."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from combee_simulator.laws import Status
from combee_simulator.requests import Message

__all__ = ["CallRecord", "Counters", "Kind", "ServiceStats", "Tally"]


class Kind(StrEnum):
    """What a request asks for: an answer to the task, a text to learn from, or anything else."""

    TASK = "task"
    REFLECT = "reflect"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Tally:
    """Calls and the tokens billed for them, by the service's approximation."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Return the sum, field by field."""
        prompt, completion = (
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )
        return Tally(self.calls + other.calls, prompt, completion)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the service saw it. All times are simulated seconds since the first request.

    Attributes:
        kind: What was asked for.
        status: How it ended.
        arrived: When the request came in.
        started: When it took a slot; the same as ``arrived`` where it never did.
        ended: When its answer was sent.
        seconds: What the latency law gave it: how long it held a slot, without what timers add.
        tokens: Prompt and completion tokens.
        messages: What was asked.
        text: What was answered; with several choices all of them.
    """

    kind: Kind
    status: Status
    arrived: float
    started: float
    ended: float
    seconds: float
    tokens: tuple[int, int]
    messages: tuple[Message, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """A snapshot of the service's counters since its start or its last reset.

    Attributes:
        total: All calls that have ended.
        by_kind: The same by what was asked.
        by_status: The same by how it ended.
        peak_in_flight: Most calls that held a slot at once. At time scale 0 a call holds none for
            any time.
        peak_queued: Most calls that waited for a slot at once.
        queue_seconds: Simulated seconds that calls waited for a slot, summed.
        slot_busy_seconds: Simulated seconds that slots were held, summed. It counts a call when it
            ends.
        clock_seconds: Simulated seconds from the first request to the last end of a call; None at
            time scale 0.
        slots: Slots of the service.
        simulated: Always True: no language model was involved.
    """

    total: Tally
    by_kind: Mapping[str, Tally]
    by_status: Mapping[str, Tally]
    peak_in_flight: int
    peak_queued: int
    queue_seconds: float
    slot_busy_seconds: float
    clock_seconds: float | None
    slots: int
    simulated: bool = True

    @property
    def calls(self) -> int:
        """Calls that have ended."""
        return self.total.calls

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens billed."""
        return self.total.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Completion tokens billed."""
        return self.total.completion_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as plain JSON values."""
        data = asdict(self)
        return {**data.pop("total"), **data}


@dataclass(slots=True)
class _Counted:
    tallies: dict[tuple[Kind, Status], Tally] = field(default_factory=dict)
    log: list[CallRecord] = field(default_factory=list)
    peak_in_flight: int = 0
    peak_queued: int = 0
    queue_seconds: float = 0.0
    slot_busy_seconds: float = 0.0
    first: float | None = None
    last: float = 0.0


class Counters:
    """The service's counters: written on its event loop, read and reset from any thread.

    Args:
        slots: Slots of the service, repeated in every snapshot.
        time_scale: Wall seconds for one simulated second.
    """

    def __init__(self, slots: int, time_scale: float) -> None:
        self._slots = slots
        self._time_scale = time_scale
        self._lock = threading.Lock()
        self._now = _Counted()

    def note(self, *, queued: int = 0, in_flight: int = 0, queue_seconds: float = 0.0) -> None:
        """Note how many calls wait or hold a slot now, and how long one waited.

        The first note starts the clock.
        """
        with self._lock:
            now = self._now
            now.first = time.monotonic() if now.first is None else now.first
            now.peak_queued = max(now.peak_queued, queued)
            now.peak_in_flight = max(now.peak_in_flight, in_flight)
            now.queue_seconds += queue_seconds

    def ended(
        self,
        kind: Kind,
        status: Status,
        tokens: tuple[int, int],
        seconds: float,
        record: CallRecord | None = None,
    ) -> None:
        """Note that a call ended: tokens, seconds in its slot, and itself where calls are kept."""
        with self._lock:
            tallies = self._now.tallies
            tallies[kind, status] = tallies.get((kind, status), Tally()) + Tally(1, *tokens)
            self._now.slot_busy_seconds += seconds
            self._now.last = time.monotonic()
            if record is not None:
                self._now.log.append(record)

    def calls(self) -> tuple[CallRecord, ...]:
        """Return the logged calls in the order in which they ended.

        Times count from the first arrival.
        """
        with self._lock:
            calls = tuple(self._now.log)
        first = min((call.arrived for call in calls), default=0.0)
        return tuple(
            replace(
                call,
                arrived=call.arrived - first,
                started=call.started - first,
                ended=call.ended - first,
            )
            for call in calls
        )

    def reset(self) -> None:
        """Set every counter to zero and forget the calls.

        Those in flight are counted when they end.
        """
        with self._lock:
            self._now = _Counted()

    def snapshot(self) -> ServiceStats:
        """Return the counters as they are now."""
        with self._lock:
            now, tallies = replace(self._now), dict(self._now.tallies)
        clock: float | None = None
        if self._time_scale > 0:
            clock = (
                0.0
                if now.first is None or not tallies
                else (now.last - now.first) / self._time_scale
            )
        return ServiceStats(
            total=_total(tallies, ""),
            by_kind={kind.value: _total(tallies, kind) for kind in Kind},
            by_status={status.value: _total(tallies, status) for status in Status},
            peak_in_flight=now.peak_in_flight,
            peak_queued=now.peak_queued,
            queue_seconds=now.queue_seconds,
            slot_busy_seconds=now.slot_busy_seconds,
            clock_seconds=clock,
            slots=self._slots,
        )


def _total(tallies: Mapping[tuple[Kind, Status], Tally], part: str) -> Tally:
    return sum((tally for place, tally in tallies.items() if not part or part in place), Tally())
