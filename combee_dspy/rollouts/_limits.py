"""How many effects may be in flight: a fixed number, or one that adapts to the service."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from combee_dspy.rollouts._chance import Chance
from combee_dspy.rollouts._latency import WINDOW, Latency

Outcome = Literal["ok", "failed", "cancelled"]
"""How an effect ended: with a result, with an error (its seconds say nothing), or taken back (it
says nothing).
"""

# More than 5 standard errors of a window's median above 1; it must be seen in two windows.
_QUEUES = 1.4
# Beyond this it is no queue but effects of another kind.
_OTHER_EFFECTS = 8.0
_LONGEST_HOLD = 120.0
_FIRST_PAUSE = 2
# A probe of a limit that latency set must be large enough to be seen in two windows.
_LATENCY_PROBE = 0.25
_FULL_SHARE = 0.8


class Dispatch(NamedTuple):
    """The state of a limit when an effect began.

    Attributes:
        lane: Kind of effect: seconds are compared within a lane only.
        began: When it began.
        level: How many could be in flight then.
        era: The limit's era then: effects of an earlier era say nothing about this one.
    """

    lane: str
    began: float
    level: int
    era: int = 0


class Limit:
    """How many effects may be in flight: here always the same number. Lives on one event loop.

    Times are of one monotonic clock. A limit changes when effects run, never what they return.

    Attributes:
        current: How many may be in flight now, at least 1.
        served: The most that the service was seen to take at once; ``None`` before it showed a
            bound.
        held_until: No effect begins before this time.
        on_change: Called with the new limit and the reason after each change.
    """

    def __init__(self, current: int) -> None:
        self.current = current
        self.served: int | None = current
        self.held_until = 0.0
        self.on_change: Callable[[int, str], None] | None = None

    def started(self, lane: str, now: float) -> Dispatch:
        """Note that an effect begins; return the argument for :meth:`ended`."""
        return Dispatch(lane, now, self.current)

    def ended(self, dispatch: Dispatch, outcome: Outcome, now: float, calls: int = 1) -> None:
        """Note that an effect ended, and how many LM calls were answered for it."""

    def rejected(self, retry_after: float | None, now: float, effect: int | None = None) -> None:
        """Note that the service answered "too many requests" to an effect in flight.

        Args:
            retry_after: Seconds that it asked to wait, ``None`` where it named none.
            now: The time.
            effect: The effect's number; ``None`` where it is not known.
        """


class Fixed(Limit):
    """A number that the user states, who knows the service. Rejected calls wait and are
    repeated.
    """


@dataclass(slots=True)
class _Recovery:
    """The round trip after a rejection: as many ends as effects were in flight.

    Attributes:
        left: Ends to go.
        floor: The limit falls no lower in this round trip.
        probed: Whether a probe was rejected.
        effects: Those that were rejected.
    """

    left: int
    floor: int
    probed: bool
    effects: set[int | None] = field(default_factory=set)


class Adaptive(Limit):
    """How many effects may be in flight, by how they end. Needs to know nothing of the service.

    - *Start.* Each effect that ends while the limit is reached raises it by one,
      so it doubles in a round trip (slow start, RFC 5681 section 3.1).
    - *Rejection.* A service that rejects some of n requests in flight holds the
      others: the limit becomes n minus the effects rejected. Within one round
      trip (as many ends as were in flight) an effect counts once, and the limit
      falls to no less than half. ``Retry-After`` is waited for, two minutes at most.
    - *Chance.* Where the service goes on refusing with fewer in flight, and no more of them with
      more, it refuses by chance (see :class:`~combee_dspy.rollouts._chance.Chance`). The limit
      returns and nothing is held back for such refusals; only clearly more of them than usual lower
      it, by a quarter in the end.
    - *Latency.* Seconds of an effect over the median of its lane. Two windows in a
      row whose median is above 1.4 are a queue of the service: the limit becomes
      what would be in flight without it (Little 1961: level ÷ ratio). The next
      windows must be faster for it. If they are not, effects have become longer
      and nothing queues: the limit returns and the medians are measured anew.
    - *Probe.* From then on the level found holds, and is probed above rarely: after
      two full round trips, then four, eight …; one that holds doubles the next step.

    With ``start == ceiling``, the capacity is known: the limit only backs off, and returns to the
    ceiling as far as the service allows.

    Args:
        start: Effects in flight at first, at least 1; by default eight times a serial run.
        ceiling: The most there may ever be, at least ``start``: each is a thread and a connection.
    """

    def __init__(self, start: int = 8, ceiling: int = 256) -> None:
        super().__init__(start)
        self.served = None
        self._ceiling = ceiling
        self._flying = 0
        self._era = 0
        self._starting = True
        # The highest limit known to be good, whether it was met as a queue, and the probe above it.
        self._roof = 0
        self._by_latency = False
        self._probing = False
        self._stride = 1
        self._pause = _FIRST_PAUSE
        # Full round trips since the last change; in this one: ends, and those at the limit.
        self._clean = self._ends = self._full = 0
        self._recovery: _Recovery | None = None
        self._chance = Chance()
        # The limit before the last cut for refusals, and whether that was during the start.
        self._before = (start, True)
        self._latency = Latency()
        self._slow = False  # whether the last window showed a queue
        # While a lower limit is tried against latency: the limit before, its level and ratio.
        self._trial: tuple[int, float, float] | None = None

    def started(self, lane: str, now: float) -> Dispatch:
        self._flying += 1
        return Dispatch(lane, now, self.current, self._era)

    def rejected(self, retry_after: float | None, now: float, effect: int | None = None) -> None:
        if not self._chance.refused():
            return
        if 0 < (retry_after or 0) < math.inf:
            self.held_until = max(self.held_until, now + min(retry_after or 0, _LONGEST_HOLD))
        level = self.current
        if self._recovery is None:
            # Far below the limit, few effects say little about it.
            level = self._flying if self._flying * 2 >= self.current else self.current
            self._recovery = _Recovery(level, level // 2, self._probing)
            self._before = (self.current, self._starting)
        elif effect is not None and effect in self._recovery.effects:
            return
        self._recovery.effects.add(effect)
        # An effect above a limit that was lowered in this round trip cannot raise it again.
        self._move(min(self.current, max(self._recovery.floor, level - 1)), "rejected")
        self._settle(by_latency=False)
        self._stride = 1

    def ended(self, dispatch: Dispatch, outcome: Outcome, now: float, calls: int = 1) -> None:
        full = self._flying >= self.current
        self._flying -= 1
        if outcome == "cancelled":
            return
        if self._recovery is not None:
            self._recover(self._recovery)
            return
        if self._heed_refusals(calls if outcome == "ok" else 0):
            return
        counts = outcome == "ok" and self._sample(dispatch, now - dispatch.began)
        if self._starting and full and counts and not self._slow:
            self._move(self.current + 1, "filled")
            return
        self._ends += 1
        self._full += full
        if self._ends >= self.current:
            self._round_trip()

    def _move(self, limit: int, reason: str) -> None:
        limit = max(1, min(limit, self._ceiling))
        if limit == self.current:
            return
        self.current = limit
        self._clean = self._ends = self._full = 0
        if self.on_change is not None:
            self.on_change(limit, reason)

    def _settle(self, *, by_latency: bool) -> None:
        """Take the limit for good; effects that began before say nothing about it."""
        self._roof = self.current
        self.served = max(self.served or 0, self.current)
        self._by_latency = by_latency
        self._starting = self._probing = self._slow = False
        self._trial = None
        self._latency.forget_window()
        self._era += 1

    def _recover(self, recovery: _Recovery) -> None:
        recovery.left -= 1
        if recovery.left > 0 or self._flying > self.current:
            return
        self._recovery = None
        self._chance.cut(self.current)
        self._clean = self._ends = self._full = 0
        self._era += 1
        self._pause = self._pause * 2 if recovery.probed else _FIRST_PAUSE

    def _heed_refusals(self, calls: int) -> bool:
        """Act on refusals since the last cut, or beyond those by chance; return whether it did."""
        finding = self._chance.answered(calls, self.current)
        if finding == "by chance":
            level, starting = self._before
            self.held_until = 0.0
            self._move(level, "refused by chance")
            self._roof, self._starting = max(self._roof, level), starting
        elif finding == "too many":
            # Half as many show what is by chance; of what was too much, three quarters are next.
            self._before = (self.current - max(1, self.current // 4), False)
            self._move(self.current // 2, "rejected")
            self._chance.cut(self.current)
            self._settle(by_latency=False)
            self._stride, self._pause = 1, _FIRST_PAUSE
        return finding is not None

    def _round_trip(self) -> None:
        """Grow, or not, after as many ends as the limit."""
        filled = self._full >= _FULL_SHARE * self._ends
        self._ends = self._full = 0
        # A probe of a limit that latency set is read from its windows.
        waits = self._chance.watching or (self._probing and self._by_latency)
        if self._starting or not filled or waits:
            return
        if self._probing:
            self._probe_held()
            return
        self._clean += 1
        if self._trial is not None or self.current >= self._ceiling:
            return
        if self.current < self._roof:
            self._move(min(self._roof, self.current + max(1, self.current // 2)), "filled")
        elif self._clean >= self._pause:
            self._probe()

    def _probe(self) -> None:
        stride = math.ceil(self.current * _LATENCY_PROBE) if self._by_latency else self._stride
        self._settle(by_latency=self._by_latency)
        self._probing = True
        self._move(self.current + stride, "probe")

    def _probe_held(self) -> None:
        """Take the probed limit as the new roof; the next step is twice as large."""
        self._settle(by_latency=self._by_latency)
        self._pause, self._clean = 1, 0
        self._stride = min(2 * self._stride, self.current)
        if self.current < self._ceiling:
            self._probe()

    def _sample(self, dispatch: Dispatch, seconds: float) -> bool:
        """Measure an effect's seconds; return whether a service can have answered it."""
        of_now = dispatch.era == self._era
        answered = self._latency.add(dispatch.lane, seconds, dispatch.level, counts=of_now)
        decides = self._trial is not None or self._probing
        if answered and (reading := self._latency.read(2 * WINDOW if decides else WINDOW)):
            self._read_window(*reading)
        return answered

    def _read_window(self, ratio: float, level: float) -> None:
        if self._trial is not None:
            self._end_trial(*self._trial, ratio, level)
        elif ratio > _OTHER_EFFECTS:
            self._slow = False
            self._latency.rebase(ratio)
        elif self._probing and self._by_latency:
            self._end_latency_probe(ratio, level)
        elif ratio < _QUEUES:
            self._slow = False
            self._latency.follow(ratio)
        elif not self._slow or self.current == 1:
            self._slow = True
        else:
            before, self._pause = self.current, _FIRST_PAUSE
            self._move(max(before // 4, min(round(level / ratio), before - 1)), "latency")
            self._settle(by_latency=True)
            self._trial = (before, level, ratio)

    def _end_latency_probe(self, ratio: float, level: float) -> None:
        if ratio < math.sqrt(1 + _LATENCY_PROBE):
            self._latency.follow(ratio)
            self._probe_held()
        else:
            self._pause *= 2
            self._move(min(self._roof, round(level / ratio)), "latency")
            self._settle(by_latency=True)

    def _end_trial(
        self, before: int, old_level: float, old_ratio: float, ratio: float, level: float
    ) -> None:
        """Keep the lower limit if effects are faster for it: then they had queued."""
        self._trial, self._slow = None, False
        if math.log(ratio / old_ratio) <= 0.5 * math.log(min(level, old_level - 0.5) / old_level):
            return
        self._latency.rebase(ratio)
        self._move(before, "not queueing")
        self._settle(by_latency=False)
