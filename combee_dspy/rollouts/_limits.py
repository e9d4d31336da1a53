"""How many effects may be in flight: the contract, a number that never changes, and one that finds
its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Literal, NamedTuple

from combee_dspy.rollouts._chance import Chance

Outcome = Literal["ok", "failed", "cancelled"]
"""How an effect ended: with a result, with an error (its seconds say nothing), or taken back (it
says nothing).
"""

# The median of 48 lognormal draws with sigma 0.35 has a standard error of 6.3 %: 1.4 is more than 5
# of them above 1, and must be seen twice.
WINDOW, HIGH = 48, 1.4
# Beyond these it is no queue: an answer from a cache, or effects of another kind.
CACHED, ANOTHER_KIND = 0.1, 8.0
# Below CALM there is no queue, and the medians follow what is measured.
CALM, FOLLOW = 1.2, 0.25
LONGEST_HOLD = 120.0
FIRST_PAUSE = 2
# A probe against latency must be large enough to be seen in two windows.
LATENCY_PROBE = 0.25
FULL_SHARE = 0.8


class Dispatch(NamedTuple):
    """What is known of an effect in flight when it began.

    Attributes:
        lane: Kind of effect: seconds are compared within a lane only.
        began: When it began.
        level: How many could be in flight then.
        era: The limit's era then; what began in an earlier one says nothing about this one.
    """

    lane: str
    began: float
    level: int
    era: int = 0


class Limit:
    """Says how many effects may be in flight: as it stands, the same number at all times. Lives on
    one event loop.

    Times are of one monotonic clock. Whatever it says changes when effects run, never what they
    return.

    Attributes:
        current: How many may be in flight now, at least 1.
        served: The most that the service was seen to take at once; ``None`` before it showed a
            bound.
        held_until: No dispatch before this time.
        on_change: Called with the new limit and the reason after each change.
    """

    def __init__(self, current: int) -> None:
        self.current = current
        self.served: int | None = current
        self.held_until = 0.0
        self.on_change: Callable[[int, str], None] | None = None

    def started(self, lane: str, now: float) -> Dispatch:
        """Hear that an effect goes to the service; return what :meth:`ended` is to be given."""
        return Dispatch(lane, now, self.current)

    def ended(self, dispatch: Dispatch, outcome: Outcome, now: float, calls: int = 1) -> None:
        """Hear that an effect ended, and how many LM calls were answered for it."""

    def rejected(self, retry_after: float | None, now: float, who: object = None) -> None:
        """Hear that the service answered "too many requests" to an effect in flight.

        Args:
            retry_after: Seconds that it asked to wait, ``None`` where it named none.
            now: As everywhere here.
            who: Tells effects apart; ``None`` where that is not known.
        """


class Fixed(Limit):
    """What a user states who knows the service. A refusal is the business of whoever repeats the
    call.
    """


class Adaptive(Limit):
    """How many effects may be in flight, from what becomes of them. No prior knowledge of the
    service is needed.

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

    Whoever knows the capacity gives ``start == ceiling``: then it only backs
    off, and returns to the ceiling as far as the service allows.

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
        # The highest limit known to be good, whether it was met as a queue, and the search above
        # it.
        self._roof = 0
        self._by_latency = False
        self._probing = False
        self._stride = 1
        self._pause = FIRST_PAUSE
        # Since the last change: full round trips; and in this one: ends, and those with the limit
        # reached.
        self._clean = self._ends = self._full = 0
        # A round trip after a rejection: ends to go, who was rejected, the lowest limit, whether it
        # was a probe.
        self._recovery: tuple[int, set[object], int, bool] | None = None
        self._chance = Chance()
        # The limit before the last cut for refusals, and whether the start was over.
        self._before = (start, True)
        # Each lane's median seconds without a queue, or the first samples of it.
        self._lanes: dict[str, float | list[float]] = {}
        self._window: list[tuple[float, int]] = []
        self._high = False
        # A limit that was lowered to see what latency does: the limit before, its samples' level
        # and ratio.
        self._cut: tuple[int, float, float] | None = None

    def started(self, lane: str, now: float) -> Dispatch:
        self._flying += 1
        return Dispatch(lane, now, self.current, self._era)

    def rejected(self, retry_after: float | None, now: float, who: object = None) -> None:
        if not self._chance.refused():
            return
        if 0 < (retry_after or 0) < math.inf:
            self.held_until = max(self.held_until, now + min(retry_after or 0, LONGEST_HOLD))
        if self._recovery is None:
            # Where the limit was not reached, few effects say little about it.
            level = self._flying if self._flying * 2 >= self.current else self.current
            self._recovery = (level, {who}, level // 2, self._probing)
            self._before = (self.current, self._starting)
        elif who is not None and who in self._recovery[1]:
            return
        else:
            level = self.current
            self._recovery[1].add(who)
        # An effect that fails above a limit already lowered in this round trip cannot raise it
        # again.
        self._move(min(self.current, max(self._recovery[2], level - 1)), "rejected")
        self._settle(by_latency=False)
        self._stride = 1

    def ended(self, dispatch: Dispatch, outcome: Outcome, now: float, calls: int = 1) -> None:
        full = self._flying >= self.current
        self._flying -= 1
        if outcome == "cancelled":
            return
        if self._recovery is not None:
            self._recover(*self._recovery)
            return
        if self._heed_refusals(calls if outcome == "ok" else 0):
            return
        counts = outcome == "ok" and self._sample(dispatch, now - dispatch.began)
        if self._starting and full and counts and not self._high:
            self._move(self.current + 1, "filled")
            return
        self._ends += 1
        self._full += full
        if self._ends >= self.current:
            self._round_trip()

    def _heed_refusals(self, calls: int) -> bool:
        """Do what refusals since the last cut, or beyond those by chance, ask for; return whether
        anything was done.
        """
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
            self._stride, self._pause = 1, FIRST_PAUSE
        return finding is not None

    def _move(self, limit: int, reason: str) -> None:
        limit = max(1, min(limit, self._ceiling))
        if limit == self.current:
            return
        self.current = limit
        self._clean = self._ends = self._full = 0
        if self.on_change is not None:
            self.on_change(limit, reason)

    def _settle(self, *, by_latency: bool) -> None:
        """Take the limit as the level that holds; what began before says nothing about it."""
        self._roof = self.current
        self.served = max(self.served or 0, self.current)
        self._by_latency = by_latency
        self._starting = self._probing = self._high = False
        self._cut = None
        self._window.clear()
        self._era += 1

    def _recover(self, left: int, who: set[object], floor: int, probed: bool) -> None:
        self._recovery = (left - 1, who, floor, probed)
        if left > 1 or self._flying > self.current:
            return
        self._recovery = None
        self._chance.cut(self.current)
        self._clean = self._ends = self._full = 0
        self._era += 1
        self._pause = self._pause * 2 if probed else FIRST_PAUSE

    def _round_trip(self) -> None:
        """Grow, or not, after as many ends as the limit."""
        filled = self._full >= FULL_SHARE * self._ends
        self._ends = self._full = 0
        if (
            self._starting
            or not filled
            or self._chance.watching
            or (self._probing and self._by_latency)
        ):
            return  # a probe against latency is read from its windows
        if self._probing:
            self._held()
            return
        self._clean += 1
        if self._cut is not None or self.current >= self._ceiling:
            return
        if self.current < self._roof:
            self._move(min(self._roof, self.current + max(1, self.current // 2)), "filled")
        elif self._clean >= self._pause:
            self._probe()

    def _probe(self) -> None:
        stride = math.ceil(self.current * LATENCY_PROBE) if self._by_latency else self._stride
        self._settle(by_latency=self._by_latency)
        self._probing = True
        self._move(self.current + stride, "probe")

    def _held(self) -> None:
        """The probe was right: what holds is the new roof, and the next step is twice as large."""
        self._settle(by_latency=self._by_latency)
        self._pause, self._clean = 1, 0
        self._stride = min(2 * self._stride, self.current)
        if self.current < self._ceiling:
            self._probe()

    def _sample(self, dispatch: Dispatch, seconds: float) -> bool:
        """Add an effect's seconds to the window; return whether a service can have answered it."""
        base = self._lanes.setdefault(dispatch.lane, [])
        if isinstance(base, list):
            base.append(seconds)
            # Effects that began together end shortest first: all of them are waited for.
            if len(base) >= max(WINDOW, dispatch.level):
                self._lanes[dispatch.lane] = median(base) or base
            return True
        ratio = seconds / base
        if ratio < CACHED:
            return False
        if dispatch.era == self._era:
            self._window.append((ratio, dispatch.level))
            decides = self._cut is not None or self._probing
            if len(self._window) >= (2 * WINDOW if decides else WINDOW):
                self._read_window()
        return True

    def _read_window(self) -> None:
        ratio = median(ratio for ratio, _ in self._window)
        level = median(level for _, level in self._window)
        self._window.clear()
        if self._cut is not None:
            self._judge_cut(*self._cut, ratio, level)
        elif ratio > ANOTHER_KIND:
            self._high = False
            self._rebase(ratio)
        elif self._probing and self._by_latency:
            if ratio < math.sqrt(1 + LATENCY_PROBE):
                self._follow(ratio)
                self._held()
            else:
                self._pause *= 2
                self._move(min(self._roof, round(level / ratio)), "latency")
                self._settle(by_latency=True)
        elif ratio < HIGH:
            self._high = False
            self._follow(ratio)
        elif not self._high or self.current == 1:
            self._high = True
        else:
            before, self._pause = self.current, FIRST_PAUSE
            self._move(max(before // 4, min(round(level / ratio), before - 1)), "latency")
            self._settle(by_latency=True)
            self._cut = (before, level, ratio)

    def _judge_cut(
        self, before: int, old_level: float, old_ratio: float, ratio: float, level: float
    ) -> None:
        """Fewer effects in flight are faster if they had queued, and as slow as before if they had
        not.
        """
        self._cut, self._high = None, False
        if math.log(ratio / old_ratio) <= 0.5 * math.log(min(level, old_level - 0.5) / old_level):
            return
        self._rebase(ratio)
        self._move(before, "not queueing")
        self._settle(by_latency=False)

    def _follow(self, ratio: float) -> None:
        if ratio < CALM:
            self._rebase(ratio**FOLLOW)

    def _rebase(self, factor: float) -> None:
        for lane, base in self._lanes.items():
            if not isinstance(base, list):
                self._lanes[lane] = base * factor
