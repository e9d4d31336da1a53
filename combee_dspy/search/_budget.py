"""What a run may still buy: promised before it is bought, so that no limit is passed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from combee_dspy.records import CallUsage
from combee_dspy.search._spent import COUNTED, Kind, Lost, Spent, at_most, likely_cost
from combee_dspy.stopping import Limits

__all__ = ["BudgetReached", "Purse", "Repeats", "at_most"]


class BudgetReached(Exception):  # noqa: N818 - ends an update, never leaves the search
    """A limit leaves no room for the next effect; the message says which."""


_READING = 2  # what an update costs, readings included, as a multiple of its rollouts
_GROWTH = (
    2  # texts grow as they learn, and with them what is in flight may cost more than all before it
)


class Purse:
    """Promises rollouts to updates before they begin, and costs to effects before they are sent.

    Rollouts are counted by what the search asks for, so an update knows before it
    begins what is left, whatever was read from a journal or a cache. Of updates
    that are under way the whole promise counts, however far they are: what is left
    must not hang on how fast an update was.

    What an effect will cost is known afterwards only, so each is granted for the most that it
    may cost, and a run ends where that passes a limit with nothing else in flight. Where LMs
    tell how long their answers may be (``max_tokens``), a call costs at most that and a token
    for each byte of what is known of its prompt; where they do not, an effect may cost as much
    as the dearest of its kind so far, and one in flight twice as much. It may make as many calls
    as any of its kind so far. Where no service has answered one of a kind yet, no more than one
    more than have ended are in flight. What would pass a limit beside what is in flight waits.

    What an effect is granted is on disk before it is sent, so one that was in flight when a run was
    killed is counted for that for as long as its call may be running; then for what those of its
    kind cost on average, since a kill must not eat a budget. What it has cost beyond that nobody
    knows: :meth:`doubts` says how far the limit may be passed.

    A call that a service turns away is a call: whoever repeats one asks first (:class:`Repeats`).

    So what passes a limit is what nobody knows beforehand: more calls than any effect of the
    kind has made, what tools and images add to a prompt, what a lost effect has cost beyond the
    mean, and where LMs tell nothing, more than was granted. It is passed by what those in flight,
    few where a limit is near, cost more than was granted. Lives on the search's loop.

    Args:
        limits: The hard limits.
        earlier: What each effect of earlier parts of the run has cost, with its kind.
        lost: Those that were in flight when an earlier part was killed: they may have been paid.
        seconds: How long they took.
        charged: Whether limits on cost and time are held; not where an earlier run's decisions are
            taken again.

    Attributes:
        spent: What effects have cost so far.
        exhausted: Whether a limit has cut the run off: then there is no room for any further
            rollout, however much the update that was cut off had asked for by then.
        set_aside: Rollouts for what follows the last update.
        by_tokens: Whether what a call may cost at most matters.
        limits_cost: Whether calls, tokens, dollars or GPU-seconds are limited.
        grants: Whether effects may have to wait for a grant, or be refused one: whether cost or
            time is limited.
        reserve: Seconds at the end of the run that are not the search's: for the held-out set.
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
        self.limits = limits
        self.spent = Spent()
        self._kinds: defaultdict[str, Kind] = defaultdict(Kind)
        for kind, usage in earlier:
            self._kinds[kind].land(usage)
            self.spent.add(usage)
        self._running = list(lost)
        self._settled: list[tuple[Lost, Mapping[str, float]]] = []
        for effect in self._running:
            self.spent.lose(effect.most)
        self._settle()
        self._repeats = 0  # of calls that failed, sent and not in the books yet
        self._lock = threading.Lock()
        self._charged = charged
        self.by_tokens = charged and (limits.tokens, limits.dollars) != (None, None)
        self.limits_cost = charged and any(getattr(limits, name) is not None for name in COUNTED)
        self.grants = self.limits_cost or (charged and limits.seconds is not None)
        self._asked: dict[str, int] = {}
        self._by_step: defaultdict[int, int] = defaultdict(int)
        self._promised: dict[int, int] = {}
        self._step = self._known = -1
        self.exhausted = False
        self.set_aside = 0
        self.reserve = 0.0
        self._turn = asyncio.Lock()
        self._began = time.monotonic() - seconds
        self._landing: asyncio.Future[None] | None = None

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, those of its earlier parts included."""
        return time.monotonic() - self._began

    def look(self, step: int, known: int) -> None:
        """Set whose view of the budget :attr:`room` is: update ``step``, which knows of those up to
        ``known``.
        """
        self._step, self._known = step, known

    @property
    def room(self) -> int | None:
        """Rollouts that are neither bought nor promised; ``None`` without a limit."""
        if self.exhausted:
            return 0
        if self.limits.rollouts is None:
            return None
        under_way = sum(self._promised[step] for step in self._under_way())
        # The student's validation counts from the start, whether it has asked for its rollouts by
        # now or not.
        seed = max(self._promised.get(-1, 0), self._by_step[-1])
        taken = (
            seed
            + self.bought(self._known, first=0)
            + (self._by_step[self._step] if self._step >= 0 else 0)
        )
        return max(0, self.limits.rollouts - taken - under_way - self.set_aside)

    def is_short(self, rollouts: int) -> bool:
        """Return whether updates under way, and another with so many rollouts, may pass a limit on
        cost together.

        A limit that is reached with several updates in flight ends them all: what they have read is
        paid for, and no text of theirs is validated.
        """
        rollout = self._kinds["rollout"]
        # Whole promises, since what was run has yet to be read; at the start the student's
        # validation.
        under_way = sum(self._promised[step] for step in self._under_way())
        coming = rollouts + under_way + max(0, self._promised.get(-1, 0) - rollout.ended)
        for name in COUNTED:
            limit, spent = getattr(self.limits, name), getattr(self.spent, name)
            if limit is None or spent is None:
                continue
            # Its readings cost as much again as its rollouts until this run shows what they cost.
            dearest = rollout.dearest[name] if rollout.ended else rollout.most(name)
            each = max(_READING * dearest, spent / rollout.ended if rollout.ended else 0.0)
            if spent + coming * each > limit:
                return True
        return False

    def _under_way(self) -> list[int]:
        return [step for step in self._promised if max(self._known, -1) < step < self._step]

    def bought(self, last: int, first: int = -1) -> int:
        """Return the rollouts that updates ``first`` to ``last``, −1 for the student, asked for
        before all others.
        """
        return sum(count for step, count in self._by_step.items() if first <= step <= last)

    def promise(self, step: int, rollouts: int) -> None:
        """Set rollouts aside for an update, beside those that it has asked for already."""
        self._promised[step] = self._by_step[step] + rollouts

    def count(self, key: str, step: int) -> None:
        """Note that an update asks for a rollout. It counts for the first update that does, whoever
        was faster.
        """
        first = self._asked.get(key)
        if first is not None and first <= step:
            return
        self._asked[key] = step
        self._by_step[step] += 1
        if first is not None:
            self._by_step[first] -= 1

    async def grant(
        self, kind: str, told: Mapping[str, float] | None = None
    ) -> Mapping[str, float]:
        """Grant one effect of a kind before it is sent, as soon as what is in flight leaves room
        for it.

        Args:
            kind: Its kind.
            told: The ``tokens`` and ``dollars`` that one of its LM calls may cost at most, as far
                as that is known.

        Returns:
            What it may cost, of what is limited.

        Raises:
            BudgetReached: A limit on cost or time leaves no room for it.
        """
        for name, most in (told or {}).items():
            self._kinds[kind].told[name] = max(self._kinds[kind].told[name], most)
        if self.grants:
            async with (
                self._turn
            ):  # who asked first is granted first: the student's validation before all else
                while not self._admitted(kind):
                    if self._landing is None:
                        self._landing = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._landing)
        else:
            self._kinds[kind].flying += 1
        limited = (
            name for name in COUNTED if self._charged and getattr(self.limits, name) is not None
        )
        return {name: self._kinds[kind].most(name) for name in limited}

    def _admitted(self, kind: str) -> bool:
        self._settle()
        with self._lock:
            if self._must_wait(kind):
                return False
            self._kinds[kind].flying += 1
            return True

    def _settle(self) -> None:
        """Count lost effects that no service can work on any more for what they have likely
        cost.
        """
        for effect in [effect for effect in self._running if effect.until <= time.time()]:
            self._running.remove(effect)
            likely = likely_cost(effect, self._kinds)
            self._settled.append((effect, likely))
            self.spent.lose({name: likely[name] - most for name, most in effect.most.items()})

    def allow_repeats(self, calls: int) -> bool:
        """Let so many calls be sent again, if the limit leaves room beside what is in flight. From
        any thread.
        """
        limit = self.limits.calls if self._charged else None
        with self._lock:
            flying = sum(kind.flying * kind.most("calls") for kind in self._kinds.values())
            if limit is not None and self.spent.calls + self._repeats + flying + calls > limit:
                return False
            self._repeats += calls
            return True

    def in_time(self) -> None:
        """Hold the limit on time: for a grant, and again when an effect that may have queued for
        long gets its slot.

        Raises:
            BudgetReached: The time is over.
        """
        if self.left is not None and self.left <= self.reserve:
            raise BudgetReached(self.time_is_over())

    @property
    def left(self) -> float | None:
        """Seconds until the run has to end; ``None`` without a limit."""
        limited = self._charged and self.limits.seconds is not None
        return self.limits.seconds - self.seconds if limited else None  # type: ignore[operator]  # it is limited

    def keep_back(self, seconds: float) -> None:
        """Keep time for the held-out set: half of all at most.

        That is twice what it may take, and a second in which what is in flight may end.
        """
        if self.limits.seconds is not None:
            self.reserve = min(2 * seconds + 1.0, self.limits.seconds / 2)

    def time_is_over(self) -> str:
        """Return why nothing more may begin, in words."""
        seconds = f"{self.seconds:.2g}" if self.seconds < 10 else f"{self.seconds:.0f}"
        passed = f"{seconds} of {self.limits.seconds:g} seconds have passed"
        return (
            f"{passed}, and {self.reserve:.2g} are for the held-out set" if self.reserve else passed
        )

    def returned(self, kind: str, usage: Sequence[CallUsage], repeats: int = 0) -> None:
        """Note what an effect that was granted has cost, calls among it that were sent again."""
        with self._lock:
            self._kinds[kind].flying -= 1
            self._kinds[kind].land(usage)
            self._repeats -= repeats
            self.spent.add(usage)
        if self._landing is not None:
            self._landing.set_result(None)
            self._landing = None

    def passed(self) -> list[str]:
        """Return by how much limits were passed, a sentence each: see :class:`Purse` for what may
        pass one.
        """
        of = ((name, getattr(self.spent, name), getattr(self.limits, name)) for name in COUNTED)
        return [
            f"The budget of {limit:g} {name.replace('_', ' ')} was passed by {spent - limit:g}:"
            " something cost more than was known beforehand."
            for name, spent, limit in of
            if limit is not None and spent is not None and spent > limit
        ]

    def _held(self, name: str) -> str:
        held = sum(effect.most.get(name, 0) for effect in self._running)
        if not held:
            return ""
        last = max(effect.until for effect in self._running)
        until = time.strftime("%H:%M", time.localtime(last))
        return f" ({held:g} are held until {until} for what was in flight at a kill)"

    def doubts(self) -> list[str]:
        """Return by how much limits may be passed by what was in flight at a kill, a sentence
        each.
        """
        sentences = []
        for name in COUNTED:
            limit, spent = getattr(self.limits, name), getattr(self.spent, name)
            settled = [pair for pair in self._settled if name in pair[0].most]
            running = [effect.most[name] for effect in self._running if name in effect.most]
            if limit is None or spent is None or not (settled or running):
                continue
            likely = sum(costs[name] for _, costs in settled)
            most = sum(effect.most[name] for effect, _ in settled)
            over = max(0.0, spent + most - likely - limit)
            unit = name.replace("_", " ")
            sentences.append(
                f"{len(settled) + len(running)} effects were in flight when the run was killed or"
                f" given up. Of the {unit} spent, {likely:g} are their likely cost, and"
                f" {sum(running):g} the most that those may cost that may still be running. The"
                f" limit of {limit:g} {unit} may be passed by {over:g}."
            )
        return sentences

    def withdraw(self) -> None:
        """Cancel what waits to be granted."""
        if self._landing is not None:
            self._landing.cancel()
            self._landing = None

    def _must_wait(self, kind: str) -> bool:
        """Return whether an effect must wait for one that is in flight.

        Raises:
            BudgetReached: There is no room for it, whatever those in flight will cost.
        """
        self.in_time()
        waits = False
        own, flying = self._kinds[kind], self._kinds.values()
        for name in COUNTED:
            limit, spent = getattr(self.limits, name), getattr(self.spent, name)
            if name == "gpu_seconds":
                spent = spent or 0.0  # nobody has counted any yet
            if name == "calls":
                spent += self._repeats
            if limit is None or spent is None:
                continue
            most = own.most(name)
            if spent + most > limit:
                text = (
                    f"{spent:g} of {limit:g} {name.replace('_', ' ')} are spent, and the next would"
                    " pass the limit"
                )
                text = text if most == 0 else f"{text}: it may take {most:g}"
                raise BudgetReached(f"{text}{self._held(name)}")
            if any(one.flying for one in flying):
                coming = own.most(name, _GROWTH) + sum(
                    one.flying * one.most(name, _GROWTH) for one in flying
                )
                # What no service has answered yet tells nothing of what one costs, and may never be
                # asked for one.
                waits = (
                    waits or spent + coming > limit or (not own.answered and own.flying > own.ended)
                )
        return waits


class Repeats:
    """Calls of one effect that are sent again, since they failed. From any thread.

    Attributes:
        count: How many.
        refused: Whether the budget had no room for one.
    """

    def __init__(self, purse: Purse) -> None:
        self._purse = purse
        self.count = 0
        self.refused = False

    def allow(self, calls: int = 1) -> bool:
        """Return whether so many may be sent."""
        if not self._purse.allow_repeats(calls):
            self.refused = True
            return False
        self.count += calls
        return True
