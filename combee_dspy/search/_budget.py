"""What a run may still buy: promised before it is bought, so that no limit is passed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from combee_dspy.records import CallUsage
from combee_dspy.stopping import Limits

__all__ = ["BudgetReached", "Purse", "Spent"]


class BudgetReached(Exception):  # noqa: N818 - ends an update, never leaves the search
    """A limit leaves no room for the next effect; the message says which."""


@dataclass(slots=True)
class Spent:
    """What effects have cost together.

    Attributes:
        calls: LM calls that a service answered.
        tokens: Prompt and completion tokens together.
        dollars: ``None`` once the price of a call is not known.
        gpu_seconds: ``None`` where nobody counts them.
    """

    calls: int = 0
    tokens: int = 0
    dollars: float | None = 0.0
    gpu_seconds: float | None = None

    def add(self, usage: Iterable[CallUsage]) -> None:
        """Add the calls of one effect."""
        for one in usage:
            self.calls += one.calls - one.cached
            self.tokens += one.prompt_tokens + one.completion_tokens
            if self.dollars is not None:
                self.dollars = None if one.dollars is None else self.dollars + one.dollars
            if one.gpu_seconds is not None:
                self.gpu_seconds = (self.gpu_seconds or 0.0) + one.gpu_seconds


class Purse:
    """Promises rollouts to updates before they begin, and costs to effects before they are sent.

    Rollouts are counted by what the search asks for, so an update knows before it
    begins what is left, whatever was read from a journal or a cache. Of updates
    that are under way the whole promise counts, however far they are: what is left
    must not hang on how fast an update was. What an effect will cost in calls,
    tokens or dollars is known afterwards only: it is expected to cost what those of
    its kind have cost so far on average, and what is in flight counts. Lives on the
    search's loop.

    Args:
        limits: The hard limits.
        earlier: What earlier parts of the run have cost.
        seconds: How long they took.
        charged: Whether limits on cost and time are held; not where an earlier run's decisions are taken again.

    Attributes:
        spent: What effects have cost so far.
    """

    def __init__(
        self, limits: Limits, earlier: Iterable[CallUsage] = (), seconds: float = 0.0, *, charged: bool = True
    ) -> None:
        self.limits = limits
        self.spent = Spent()
        self.spent.add(earlier)
        self._charged = charged
        self._asked: dict[str, int] = {}
        self._by_step: defaultdict[int, int] = defaultdict(int)
        self._promised: dict[int, int] = {}
        self._step = self._known = -1
        self._reserved = 0
        self._began = time.monotonic() - seconds
        self._kinds: dict[str, tuple[int, Spent]] = defaultdict(lambda: (0, Spent()))
        self._flying: dict[str, int] = defaultdict(int)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, those of its earlier parts included."""
        return time.monotonic() - self._began

    def look(self, step: int, known: int) -> None:
        """Set whose view of the budget :attr:`room` is: update ``step``, which knows of those up to ``known``."""
        self._step, self._known = step, known

    @property
    def room(self) -> int | None:
        """Rollouts that are neither bought nor promised; ``None`` without a limit."""
        if self.limits.rollouts is None:
            return None
        under_way = sum(count for step, count in self._promised.items() if max(self._known, -1) < step < self._step)
        # The student's validation counts from the start, whether it has asked for its rollouts by now or not.
        seed = max(self._promised.get(-1, 0), self._by_step[-1])
        taken = seed + self.bought(self._known, first=0) + (self._by_step[self._step] if self._step >= 0 else 0)
        return max(0, self.limits.rollouts - taken - under_way)

    def bought(self, last: int, first: int = -1) -> int:
        """Return the rollouts that some updates asked for and that no earlier one did; −1 is the student's validation.

        Args:
            last: The last of them.
            first: The first of them.
        """
        return sum(count for step, count in self._by_step.items() if first <= step <= last)

    def promise(self, step: int, rollouts: int) -> None:
        """Set rollouts aside for an update, beside those that it has asked for already."""
        self._promised[step] = self._by_step[step] + rollouts

    def count(self, key: str, step: int) -> None:
        """Note that an update asks for a rollout. It counts for the first update that does, whoever was faster."""
        first = self._asked.get(key)
        if first is not None and first <= step:
            return
        self._asked[key] = step
        self._by_step[step] += 1
        if first is not None:
            self._by_step[first] -= 1

    def reserve(self, rollouts: int) -> None:
        """Keep room for the student's validation, which begins behind other rollouts and is needed before them."""
        self._reserved = rollouts

    def send(self, kind: str, *, reserved: bool = False) -> None:
        """Grant one effect of a kind before it is sent.

        Args:
            kind: Its kind.
            reserved: Whether room was kept for it.

        Raises:
            BudgetReached: A limit on cost or time leaves no room for it.
        """
        kept, self._reserved = self._reserved, 0 if reserved else self._reserved
        reason = self._lacking(kind)
        self._reserved = max(0, kept - reserved)
        if reason:
            raise BudgetReached(reason)
        self._flying[kind] += 1

    def returned(self, kind: str, usage: Iterable[CallUsage]) -> None:
        """Note what an effect that was granted has cost."""
        self._flying[kind] -= 1
        count, total = self._kinds[kind]
        usage = tuple(usage)
        total.add(usage)
        self._kinds[kind] = (count + 1, total)
        self.spent.add(usage)

    def _lacking(self, kind: str) -> str:
        if not self._charged:
            return ""
        if self.limits.seconds is not None and self.seconds >= self.limits.seconds:
            return f"{self.seconds:.0f} of {self.limits.seconds:g} seconds have passed"
        for name in ("calls", "tokens", "dollars", "gpu_seconds"):
            limit = getattr(self.limits, name)
            spent = getattr(self.spent, name)
            if limit is None or spent is None:
                continue
            coming = {**self._flying, kind: self._flying[kind] + 1}
            coming["rollout"] = coming.get("rollout", 0) + self._reserved
            expected = spent + sum(flying * self._mean(one, name) for one, flying in coming.items())
            if expected > limit:
                return f"{spent:g} of {limit:g} {name.replace('_', ' ')} are spent, and the next would pass the limit"
        return ""

    def _mean(self, kind: str, name: str) -> float:
        count, total = self._kinds[kind]
        # Before the first of its kind has ended, every effect is known to make one call at least.
        return (getattr(total, name) or 0) / count if count else float(name == "calls")
