"""What is known of a service's capacity, and what is observed of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "FIRST_PAUSE",
    "WINDOW",
    "Change",
    "Finished",
    "Lane",
    "Observation",
    "Outcome",
    "Recovery",
    "Rejected",
    "Started",
    "State",
    "Trial",
]

# The median of 32 lognormal draws with sigma 0.35 has a standard error of 7.8 %.
WINDOW = 32
FIRST_PAUSE = 2

Outcome = Literal["ok", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Started:
    """A task was dispatched."""

    now: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A task ended.

    Attributes:
        now: Monotonic seconds.
        lane: Kind of task: seconds are compared within it.
        seconds: How long it was in flight.
        outcome: Only ``"ok"`` says something about the service's speed, and ``"cancelled"`` nothing at all.
        may_grow: Whether the run has use for more.
    """

    now: float
    lane: str
    seconds: float
    outcome: Outcome = "ok"
    may_grow: bool = True


@dataclass(frozen=True, slots=True)
class Rejected:
    """A service answered "too many requests" to a task in flight.

    Attributes:
        now: Monotonic seconds.
        who: Tells tasks apart; ``None`` where that is not known.
        retry_after: Seconds asked for.
    """

    now: float
    who: int | None = None
    retry_after: float | None = None


Observation = Started | Finished | Rejected


@dataclass(frozen=True, slots=True)
class Change:
    """The limit's last change.

    Attributes:
        old: Tasks before.
        new: Tasks after.
        reason: ``"filled"``, ``"probe"``, ``"rejected"``, ``"latency"``, ``"forgiven"`` or ``"not-queueing"``.
    """

    old: int
    new: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lane:
    """Reference of one kind of task: first samples, then their median.

    Attributes:
        base: Median seconds without a queue, ``None`` until there are enough samples.
        first: The samples until then.
        wanted: How many it takes: tasks that began together end shortest first, so no fewer than those.
    """

    base: float | None = None
    first: tuple[float, ...] = ()
    wanted: int = WINDOW


@dataclass(frozen=True, slots=True)
class Recovery:
    """A round trip that began with a rejection.

    Attributes:
        level: Tasks in flight at its first rejection.
        before: The limit then.
        floor: Lowest limit that this round trip may lead to.
        who: Tasks that were rejected in it.
        total: Rejections in it, repeated ones included.
        ends: Tasks that have ended in it.
        probing: Whether a probe was under way.
    """

    level: int
    before: int
    floor: int
    who: frozenset[int]
    total: int
    probing: bool
    ends: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """A limit that was changed to see what latency does.

    Attributes:
        old: The limit before.
        level: Median level of the samples before.
        ratio: Their median over the reference.
    """

    old: int
    level: float
    ratio: float


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a service. Immutable; :func:`step` returns the next one.

    Attributes:
        limit: Tasks that may be in flight.
        ceiling: The most there may ever be.
        in_flight: Tasks in flight.
        starting: Whether the service's capacity has not been met yet.
        held_until: No dispatch before this time.
        roof: Highest limit known to be good, once the capacity was met.
        by_latency: Whether it was met as a queue rather than as rejections.
        probing: Whether the limit is above the roof to see what happens.
        stride: Tasks of the next probe.
        pause: Full round trips before the next probe.
        clean: Full round trips since the last change.
        ends: Tasks that ended in this round trip.
        full: How many of them ended while the limit was reached.
        recovery: The rejections at hand.
        forgiven: Round trips forgiven in a row.
        cut: The last latency decrease, until its effect is known.
        lanes: Reference of each lane.
        window: (seconds over reference, limit at its start) of the last tasks.
        high: Windows in a row that were slow.
        fresh_from: Tasks that started earlier say nothing about this limit.
        marks: (time, limit) of the last changes, oldest first.
        change: The last change.
        changes: How many there were.
    """

    limit: int
    ceiling: int
    in_flight: int = 0
    starting: bool = True
    held_until: float = -math.inf
    roof: int = 0
    by_latency: bool = False
    probing: bool = False
    stride: int = 1
    pause: int = FIRST_PAUSE
    clean: int = 0
    ends: int = 0
    full: int = 0
    recovery: Recovery | None = None
    forgiven: int = 0
    cut: Trial | None = None
    lanes: tuple[tuple[str, Lane], ...] = ()
    window: tuple[tuple[float, int], ...] = ()
    high: int = 0
    fresh_from: float = -math.inf
    marks: tuple[tuple[float, int], ...] = ((-math.inf, 1),)
    change: Change | None = None
    changes: int = 0
