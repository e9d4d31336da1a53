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
    begins what is left, whatever was read from a journal or a cache. What an
    effect will cost in calls, tokens or dollars is known afterwards only: it is
    expected to cost what those of its kind have cost so far on average, and what
    is in flight counts. Lives on the search's loop.

    Args:
        limits: The hard limits.
        earlier: What earlier parts of the run have cost.
        seconds: How long they took.

    Attributes:
        spent: What effects have cost so far.
        rollouts: Rollouts that were asked for so far.
        by_step: The same by update; −1 for the seed's validation.
    """

    def __init__(self, limits: Limits, earlier: Iterable[CallUsage] = (), seconds: float = 0.0) -> None:
        self.limits = limits
        self.spent = Spent()
        self.spent.add(earlier)
        self.rollouts = 0
        self.by_step: defaultdict[int, int] = defaultdict(int)
        self._promised: defaultdict[int, int] = defaultdict(int)
        self._began = time.monotonic() - seconds
        self._kinds: dict[str, tuple[int, Spent]] = defaultdict(lambda: (0, Spent()))
        self._flying: dict[str, int] = defaultdict(int)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, those of its earlier parts included."""
        return time.monotonic() - self._began

    @property
    def room(self) -> int | None:
        """Rollouts that are neither bought nor promised; ``None`` without a limit."""
        if self.limits.rollouts is None:
            return None
        promised = sum(max(0, left) for left in self._promised.values())
        return max(0, self.limits.rollouts - self.rollouts - promised)

    def promise(self, step: int, rollouts: int) -> None:
        """Set rollouts aside for an update, at most as many as there is room for."""
        self._promised[step] += rollouts

    def settle(self, step: int) -> None:
        """Give back what an update was promised and did not ask for."""
        self._promised.pop(step, None)

    def count(self, step: int) -> None:
        """Note a rollout that an update asks for, and that nobody asked for before."""
        self.rollouts += 1
        self.by_step[step] += 1
        self._promised[step] -= 1

    def send(self, kind: str) -> None:
        """Grant one effect of a kind before it is sent.

        Raises:
            BudgetReached: A limit on cost or time leaves no room for it.
        """
        reason = self._lacking(kind)
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
        if self.limits.seconds is not None and self.seconds >= self.limits.seconds:
            return f"{self.seconds:.0f} of {self.limits.seconds:g} seconds have passed"
        for name in ("calls", "tokens", "dollars", "gpu_seconds"):
            limit = getattr(self.limits, name)
            spent = getattr(self.spent, name)
            if limit is None or spent is None:
                continue
            expected = spent + sum(
                flying * self._mean(one, name) for one, flying in {**self._flying, kind: self._flying[kind] + 1}.items()
            )
            if expected > limit:
                return f"{spent:g} of {limit:g} {name.replace('_', ' ')} are spent, and the next would pass the limit"
        return ""

    def _mean(self, kind: str, name: str) -> float:
        count, total = self._kinds[kind]
        # Before the first of its kind has ended, every effect is known to make one call at least.
        return (getattr(total, name) or 0) / count if count else float(name == "calls")
