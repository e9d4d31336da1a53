"""How many rollouts a run may still buy: promised to updates before they begin."""

from __future__ import annotations

from collections import defaultdict

from combee_dspy.stopping import Limits

__all__ = ["RolloutBudget"]


class RolloutBudget:
    """Promises rollouts to updates before they begin. Lives on the search's loop.

    Rollouts are counted by what the search asks for, so an update knows before it
    begins what is left, whatever was read from a journal or a cache. Of updates
    that are under way the whole promise counts, however far they are: what is left
    must not hang on how fast an update was.

    Args:
        limits: The hard limits.

    Attributes:
        exhausted: Whether a limit has cut the run off: then there is no room for any further
            rollout, however much the update that was cut off had asked for by then.
        set_aside: Rollouts for what follows the last update.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._asked: dict[str, int] = {}
        self._by_step: defaultdict[int, int] = defaultdict(int)
        self._promised: dict[int, int] = {}
        self._step = self._last = -1
        self.exhausted = False
        self.set_aside = 0

    def look(self, step: int, known: int) -> None:
        """Set whose view of the budget :attr:`room` is: update ``step``, which knows of those up to
        ``known``.
        """
        self._step, self._last = step, known

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
            + self.bought(self._last, first=0)
            + (self._by_step[self._step] if self._step >= 0 else 0)
        )
        return max(0, self.limits.rollouts - taken - under_way - self.set_aside)

    def _under_way(self) -> list[int]:
        return [step for step in self._promised if max(self._last, -1) < step < self._step]

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
