"""The budget of a run. Each effect reserves its maximum cost first, so no limit is passed."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf

import numpy as np

from combee_dspy.records import CallUsage
from combee_dspy.search._amounts import (
    COUNTED,
    UNITS,
    Amounts,
    KindCosts,
    LargestCall,
    Lost,
    LostCosts,
    Spent,
    cost_of,
    describe_passed,
    limited,
    times_paid,
    zeros,
)
from combee_dspy.search._rollout_budget import RolloutBudget
from combee_dspy.search._time_budget import BudgetReached, TimeBudget
from combee_dspy.stopping import Limits

# What an update costs, readings included, as a multiple of its rollouts.
_READING = 2
# Texts grow as they learn: what is in flight may cost this multiple of the dearest before it.
_GROWTH = 2


class Purse(RolloutBudget, TimeBudget):
    """Holds the limits of a run. Lives on the search's loop; thread-safe where a method says so.

    An update reserves rollouts before it begins. An effect reserves calls, tokens, dollars and
    GPU-seconds before it is sent, waits while those in flight may need the rest, and raises
    :class:`BudgetReached` where even what they give back would not be enough.

    - With ``max_tokens`` a call costs at most that, and a token for each byte of its prompt; once
      some prompts have been counted, twice as many tokens a byte as the densest of them took. A run
      that goes on takes plain English for the densest until it has counted one itself.
      Without it, an effect costs at most as much as the dearest of its kind so far, and twice as
      much while others are in flight. It makes as many calls as any of its kind has made.
    - Until a kind was answered for the first time, its maximum is the dearest of any kind, and at
      most one more than have ended are in flight.
    - A call that is sent again asks first: :meth:`send_again`.
    - From the first reading on, the likely cost of what follows an update's readings is kept back,
      :meth:`CandidatePool.kept_back`. Screens, validations and calibrations may take it, and the
      rollouts of the first update (:meth:`keep_validation`).
    - An effect that was in flight at a kill counts with its maximum while a service may be working
      on it, and then with the mean of its kind: a kill must not eat a budget. A call whose answer
      was lost counts with that mean at once. :meth:`doubts` says by how much they may pass a limit.

    So what passes a limit is what nobody knows beforehand: more calls than any effect of the kind
    has made, what tools and images add to a prompt, a prompt more than twice as dense as any before
    it, and without ``max_tokens`` an effect dearer than any before.

    Args:
        limits: The hard limits.
        earlier: What each effect of earlier parts of the run has cost, with its kind.
        lost: Effects and calls of earlier parts whose cost nobody knows.
        seconds: How long the earlier parts took.
        charged: Whether limits on cost and time hold; not where a replayed run decides when to end.

    Attributes:
        by_tokens: Whether a call's maximum by ``max_tokens`` matters.
        limits_cost: Whether calls, tokens, dollars or GPU-seconds are limited.
        grants: Whether an effect may have to wait, or be refused: cost or time is limited.
        cut: Why a call failed that the budget had no room for; empty while none did. What was
            learned before is validated, and no further update begins.
        recorded: Rows of traces that were read: they cost readings alone.
        postponed: Whether room was refused that is held for a while for what was in flight at a
            kill: the run may go on once that is free.
    """

    def __init__(
        self,
        limits: Limits,
        earlier: Iterable[tuple[str, Sequence[CallUsage]]] = (),
        lost: Iterable[Lost] = (),
        seconds: float = 0.0,
        *,
        charged: bool = True,
    ) -> None:
        RolloutBudget.__init__(self, limits)
        held = limits if charged else Limits()
        named = [getattr(held, name) for name in COUNTED]
        self._limits = np.array([inf if limit is None else limit for limit in named])
        TimeBudget.__init__(self, held.seconds, seconds)
        self.by_tokens = (held.tokens, held.dollars) != (None, None)
        self.limits_cost = bool(np.isfinite(self._limits).any())
        self.grants = self.limits_cost or self._seconds is not None
        self.postponed = False
        self.cut = ""
        self.recorded = 0
        self._kinds: defaultdict[str, KindCosts] = defaultdict(KindCosts)
        self._lost = LostCosts()
        self._booked = zeros()
        self._kept_back = zeros()
        self._counts_gpus = False
        self._sent_again = 0  # calls that failed, were sent again, and are not booked yet
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()
        self._settled: asyncio.Future[None] | None = None
        for kind, usage in earlier:
            self._kinds[kind].add(usage)
            self.book(usage)
        for effect in lost:
            self._lost.add(effect)

    def keep_validation(self, rollouts: int) -> None:
        """Keep back the cost of a last validation and what comes before it, by the mean of the
        rollouts so far. What is kept back already stays.
        """
        if rollouts:
            # The last of them is admitted only where the most that one may cost is left.
            cost = (rollouts - 1) * self._kinds["rollout"].mean + self._most("rollout")
            self._kept_back = np.maximum(self._kept_back, cost)

    @property
    def can_cut(self) -> bool:
        """Whether what was learned before a limit refuses a call counts: not once the time is over,
        and not where a kill holds room for a while, since then the run goes on.
        """
        return not self.is_over and not self.postponed

    def begin_last(self) -> None:
        """Let the last validation and tests have all that was set aside or kept back for them.

        Not where a kill holds what the run needs to go on.
        """
        self.set_aside, self._kept_back = 0, zeros()
        self.exhausted = self.exhausted and self.postponed

    async def reserve_cost(
        self, kind: str, bound: LargestCall | None = None, *, is_due: bool = False
    ) -> Mapping[str, float]:
        """Reserve the maximum cost of one effect, as soon as what is in flight leaves room for it.

        Args:
            kind: Effects of a kind cost alike.
            bound: What one of its LM calls takes at most, where that is known.
            is_due: Whether it may take what is kept back for a validation.

        Returns:
            What it may cost, of what is limited.

        Raises:
            BudgetReached: A limit on cost or time leaves no room for it.
        """
        if bound is not None:
            with self._lock:
                self._kinds[kind].bound = bound.or_larger(self._kinds[kind].bound)
        # Whoever asks first goes first: the student's validation before all else.
        async with self._turn:
            while not self._reserved(kind, is_due=is_due):
                if self._settled is None:
                    self._settled = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._settled)
        return limited(self._most(kind), self._limits) if self.limits_cost else {}

    def _reserved(self, kind: str, *, is_due: bool) -> bool:
        with self._lock:
            if self._must_wait(kind, zeros() if is_due else self._kept_back):
                return False
            self._kinds[kind].in_flight += 1
            return True

    def _must_wait(self, kind: str, kept_back: Amounts) -> bool:
        """Return whether an effect must wait for one that is in flight.

        Args:
            kind: Its kind.
            kept_back: What it may not take.

        Raises:
            BudgetReached: There is no room for it, whatever those in flight will cost.
        """
        self.check_time()
        if not self.limits_cost:
            return False
        own, used = self._kinds[kind], self._used(self._sent_again)
        if reason := self._refused_by(used, self._most(kind), kept_back):
            raise BudgetReached(reason)
        used = used + kept_back
        if not any(state.in_flight for state in self._kinds.values()):
            return False
        if not own.answered and own.in_flight > own.ended:
            return True
        return bool(self._passed_by(used, self._most(kind, _GROWTH) + self._in_flight(_GROWTH)))

    def send_again(self, kind: str, calls: int) -> str:
        """Return why calls of an effect that failed may not be sent again. Thread-safe.

        Empty where they may: they are counted until they are booked.
        """
        with self._lock:
            used = self._used(self._sent_again + calls)
            # What those in flight reserved pays for it, where lost answers leave it.
            reason = self._refused_by(used, self._in_flight())
            self._sent_again += 0 if reason else calls
            return reason

    def lose(self, kind: str) -> Mapping[str, float]:
        """Count a call without a readable answer, for which a service may charge. Thread-safe.

        Returns:
            What it may have cost, of what is limited.
        """
        if not self.by_tokens:
            return {}
        with self._lock:
            own = self._kinds[kind]
            # An answer as long as its LM allows is possible, and none was like it.
            dearest = own.dearest if own.answered or own.is_free else self._most(kind)
            largest = own.largest(self._kinds.values())
            bound = np.where(largest > 0, largest, inf)
            most = limited(np.minimum(bound, _GROWTH * dearest), self._limits)
            self._lost.add(Lost(kind == "rollout", most, answers=1))
        return most

    def book(self, usage: Sequence[CallUsage], sent_again: int = 0) -> None:
        """Add calls to what is spent, some of which were sent again. Thread-safe."""
        with self._lock:
            self._sent_again -= sent_again
            self._booked = self._booked + cost_of(usage)
            self._counts_gpus |= any(row.gpu_seconds is not None for row in usage)

    def settle(
        self, kind: str, usage: Sequence[CallUsage] | None, bound: LargestCall | None = None
    ) -> None:
        """Give back what an effect had reserved.

        Args:
            kind: Its kind.
            usage: All that it has cost; ``None`` where it shows nothing of what one costs.
            bound: What one of its LM calls was to take at most.
        """
        with self._lock:
            self._kinds[kind].in_flight -= 1
            if usage is not None:
                self._kinds[kind].add(usage, bound)
        if self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    def withdraw(self) -> None:
        """Cancel what waits for room."""
        if self._settled is not None:
            self._settled.cancel()
            self._settled = None

    @property
    def spent(self) -> Spent:
        """What effects have cost so far, and likely have where nobody knows it."""
        return Spent.of(self._used(), counts_gpus=self._counts_gpus)

    def is_short(self, rollouts: int) -> bool:
        """Return whether the updates in flight, and one more of so many rollouts, may pass a limit.

        A limit that is reached with several updates in flight ends them all: what they have read is
        paid for, and no text of theirs is validated.
        """
        rollout = self._kinds["rollout"]
        # Whole promises, since what was run has yet to be read; at the start the student's
        # validation.
        coming = rollouts + self._under_way + max(0, self._promised.get(-1, 0) - rollout.ended)
        return bool(self._passed_by(self._used(), coming * self._row_cost, self._kept_back))

    def rows_paid(self, most: int, fewest: int) -> int:
        """Return how many rows of an update the limits on cost likely pay for, at most ``most``.

        Its readings count, and so do the updates in flight and what is kept back.

        Raises:
            BudgetReached: They pay for less than ``fewest``.
        """
        each = self._row_cost
        used = self._used() + self._under_way * each
        rollout = self._rollout_cost
        # Few rows take a whole call to read, too, which is refused where it may pass the limit. So
        # is the last rollout.
        readings = (self._most(kind) for kind in self._kinds if kind.startswith("call/"))
        spread = np.max([zeros(), self._most("rollout") - rollout, *readings], axis=0)
        least = np.maximum(fewest * each, fewest * rollout + spread)
        if reason := self._refused_by(used, least, self._kept_back):
            raise BudgetReached(f"{reason}: not enough for another update")
        room = self._limits - used - self._kept_back
        rows = min(most, times_paid(room, each), times_paid(room - spread, rollout))
        return int(max(rows, fewest))

    def rollouts_paid(self, most: int) -> int:
        """Return how many more rollouts the limits pay for if each costs as much as the dearest so
        far, at most ``most``: the last texts are the longest.
        """
        dearest = self._kinds["rollout"].dearest
        room = self._limits - self._used() - self._most("rollout") + dearest
        return 0 if self.is_over else int(max(0, min(most, times_paid(room, dearest))))

    @property
    def _row_cost(self) -> Amounts:
        """What a row of an update costs, readings included: as much again as its rollout, until
        this run shows what they cost.
        """
        rows = max(self._kinds["rollout"].ended + self.recorded, 1)
        return np.maximum(_READING * self._rollout_cost, self._used() / rows)

    @property
    def _rollout_cost(self) -> Amounts:
        rollout = self._kinds["rollout"]
        return rollout.mean if rollout.charged else self._most("rollout")

    def _used(self, sent_again: int = 0) -> Amounts:
        """Return what is booked, held or likely lost, and calls that are sent again."""
        held, likely = self._lost.cost(self._kinds)
        used = self._booked + held + likely
        used[0] += sent_again
        return used

    def _most(self, kind: str, growth: int = 1) -> Amounts:
        """Return what an effect of a kind may cost at most."""
        return self._kinds[kind].most(self._kinds.values(), growth)

    def _in_flight(self, growth: int = 1) -> Amounts:
        """Return what the effects in flight may cost at most."""
        counts = {kind: state.in_flight for kind, state in self._kinds.items() if state.in_flight}
        each = (count * self._most(kind, growth) for kind, count in counts.items())
        return sum(each, zeros())

    def _refused_by(self, used: Amounts, more: Amounts, kept_back: Amounts | None = None) -> str:
        """Return which limit leaves no room for more, as far as is known now; empty for none."""
        reason = self._passed_by(used, more, kept_back)
        self.postponed |= bool(reason) and self._lost.is_held(self._limits)
        return reason

    def _passed_by(self, used: Amounts, more: Amounts, kept_back: Amounts | None = None) -> str:
        """Return which limit would be passed by more than is used; empty for none."""
        apart = zeros() if kept_back is None else kept_back
        # What takes nothing of a limit passes none, also where nothing is left of it.
        passed = np.flatnonzero((more > 0) & (used + apart + more > self._limits))
        if not passed.size:
            return ""
        first = int(passed[0])
        text = f"{used[first]:g} of {self._limits[first]:g} {UNITS[first]} are spent"
        beside = f", beside {apart[first]:g} for a last validation" if apart[first] else ""
        held = self._lost.describe_held(first)
        return f"{text}, and the next may take {more[first]:g}{beside}{held}"

    def passed(self) -> list[str]:
        """Return by how much limits were passed, a sentence each."""
        return describe_passed(self._used(), self._limits)

    def doubts(self) -> list[str]:
        """Return by how much costs that nobody knows may pass limits, a sentence each."""
        return self._lost.doubts(self._booked, self._limits, self._kinds)
