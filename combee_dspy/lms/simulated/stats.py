"""What the simulated service counted: the truth that a ledger is checked against."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from combee_dspy.lms.simulated.failures import Status
from combee_dspy.lms.simulated.requests import Message

__all__ = ["CallRecord", "Kind", "Recorder", "ServiceStats", "Tally"]


class Kind(StrEnum):
    """What a request asks for: an answer to the task, a written lesson or instruction, or anything else."""

    TASK = "task"
    REFLECT = "reflect"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Tally:
    """Calls and the tokens billed for them.

    Attributes:
        calls: HTTP requests to the completion endpoint.
        prompt_tokens: Tokens read, by the service's approximation.
        completion_tokens: Tokens written, by the same.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Return the sum, field by field."""
        return Tally(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the service saw it. All times are simulated seconds.

    Attributes:
        kind: What was asked for.
        status: How it ended.
        arrived: When the request came in, since the first one after the start or the last reset.
        started: When it took a slot; the same as ``arrived`` where it never did.
        ended: When its answer was sent.
        seconds: What the latency law gave it: how long it held a slot, without what timers add.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
        messages: What was asked.
        text: What was answered; with several choices all of them.
    """

    kind: Kind
    status: Status
    arrived: float
    started: float
    ended: float
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    messages: tuple[Message, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """A snapshot of the service's counters since its start or its last reset.

    Attributes:
        total: All calls that have ended.
        by_kind: The same by what was asked.
        by_status: The same by how it ended.
        peak_in_flight: Most calls that held a slot at once. At time scale 0 a call holds none for any time.
        peak_queued: Most calls that waited for a slot at once.
        queue_seconds: Simulated seconds that calls waited for a slot, summed.
        slot_busy_seconds: Simulated seconds that slots were held, summed. It counts a call when it ends.
        clock_seconds: Simulated seconds from the first request to the last end of a call; None at time scale 0,
            where nothing waits and time has no meaning.
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

        def plain(tally: Tally) -> dict[str, int]:
            return {
                "calls": tally.calls,
                "prompt_tokens": tally.prompt_tokens,
                "completion_tokens": tally.completion_tokens,
            }

        return {
            "simulated": self.simulated,
            **plain(self.total),
            "by_kind": {name: plain(tally) for name, tally in self.by_kind.items()},
            "by_status": {name: plain(tally) for name, tally in self.by_status.items()},
            "peak_in_flight": self.peak_in_flight,
            "peak_queued": self.peak_queued,
            "queue_seconds": self.queue_seconds,
            "slot_busy_seconds": self.slot_busy_seconds,
            "clock_seconds": self.clock_seconds,
            "slots": self.slots,
        }


@dataclass(slots=True)
class _Counters:
    tallies: dict[tuple[Kind, Status], Tally] = field(default_factory=dict)
    peak_in_flight: int = 0
    peak_queued: int = 0
    queue_seconds: float = 0.0
    slot_busy_seconds: float = 0.0
    first: float | None = None
    last: float | None = None


class Recorder:
    """The service's counters. Every method may be called from any thread.

    Args:
        slots: Slots of the service, repeated in every snapshot.
        time_scale: Wall seconds for one simulated second.
        clock: Monotonic wall clock in seconds.
    """

    def __init__(self, slots: int, time_scale: float, clock: Callable[[], float]) -> None:
        self._slots = slots
        self._time_scale = time_scale
        self._clock = clock
        self._lock = threading.Lock()
        self._counters = _Counters()
        self._log: list[CallRecord] = []

    def log(self, record: CallRecord) -> None:
        """Keep one call, with its times on the service's own clock."""
        with self._lock:
            self._log.append(record)

    def calls(self) -> tuple[CallRecord, ...]:
        """Return the calls that were kept, in the order in which they ended; times count from the first arrival."""
        with self._lock:
            kept = tuple(self._log)
        first = min((call.arrived for call in kept), default=0.0)
        return tuple(
            replace(call, arrived=call.arrived - first, started=call.started - first, ended=call.ended - first)
            for call in kept
        )

    def arrived(self) -> None:
        """Note that a request came in."""
        with self._lock:
            if self._counters.first is None:
                self._counters.first = self._clock()

    def waiting(self, queued: int) -> None:
        """Note how many calls wait for a slot now."""
        with self._lock:
            self._counters.peak_queued = max(self._counters.peak_queued, queued)

    def started(self, in_flight: int, queue_seconds: float) -> None:
        """Note that a call took a slot: how many hold one now, and how long it waited in simulated seconds."""
        with self._lock:
            self._counters.peak_in_flight = max(self._counters.peak_in_flight, in_flight)
            self._counters.queue_seconds += queue_seconds

    def ended(self, kind: Kind, status: Status, tokens: tuple[int, int], busy_seconds: float) -> None:
        """Note that a call ended, with its (prompt, completion) tokens and the simulated seconds it held a slot."""
        with self._lock:
            place = (kind, status)
            self._counters.tallies[place] = self._counters.tallies.get(place, Tally()) + Tally(1, *tokens)
            self._counters.slot_busy_seconds += busy_seconds
            self._counters.last = self._clock()

    def reset(self) -> None:
        """Set every counter to zero and forget the log. Calls in flight are counted when they end."""
        with self._lock:
            self._counters = _Counters()
            self._log = []

    def snapshot(self) -> ServiceStats:
        """Return the counters as they are now."""
        with self._lock:
            counters = self._counters
            tallies = dict(counters.tallies)
            clock: float | None = None
            if self._time_scale > 0:
                first, last = counters.first, counters.last
                clock = 0.0 if first is None or last is None else (last - first) / self._time_scale
            kinds = {kind.value: _total(tallies, kind) for kind in Kind}
            statuses = {status.value: _total(tallies, status) for status in Status}
            return ServiceStats(
                total=sum(tallies.values(), Tally()),
                by_kind=MappingProxyType(kinds),
                by_status=MappingProxyType(statuses),
                peak_in_flight=counters.peak_in_flight,
                peak_queued=counters.peak_queued,
                queue_seconds=counters.queue_seconds,
                slot_busy_seconds=counters.slot_busy_seconds,
                clock_seconds=clock,
                slots=self._slots,
            )


def _total(tallies: Mapping[tuple[Kind, Status], Tally], part: Kind | Status) -> Tally:
    return sum((tally for place, tally in tallies.items() if part in place), Tally())
