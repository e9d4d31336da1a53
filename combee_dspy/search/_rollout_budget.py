"""Counts the rollouts of a run. An update reserves its rollouts before it begins."""

from __future__ import annotations

from collections import defaultdict

from combee_dspy.stopping import Limits


class RolloutBudget:
    """Reserves rollouts for updates before they begin. Lives on the search's loop.

    Rollouts count when the search asks for them, whether they are run or read from a journal or a
    cache, so an update knows what is left before it begins. An update under way counts with all
    that it reserved, however far it is: what is left must not depend on its speed.

    Args:
        limits: The hard limits.

    Attributes:
        exhausted: Whether a limit has ended the run in the middle of an update: no rollout follows.
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

    def look(self, step: int, last: int) -> None:
        """Set for whom :attr:`room` is: for update ``step``, which knows what updates up to
        ``last`` have used.
        """
        self._step, self._last = step, last

    @property
    def room(self) -> int | None:
        """Rollouts that are neither used nor reserved; ``None`` without a limit."""
        if self.exhausted:
            return 0
        if self.limits.rollouts is None:
            return None
        # The student's validation counts from the start, whether it has begun or not.
        student = max(self._promised.get(-1, 0), self._by_step[-1])
        earlier = self.bought(self._last, first=0)
        own = self._by_step[self._step] if self._step >= 0 else 0
        used = student + earlier + own
        return max(0, self.limits.rollouts - used - self._under_way - self.set_aside)

    @property
    def _under_way(self) -> int:
        """What updates under way have reserved."""
        steps = (step for step in self._promised if max(self._last, -1) < step < self._step)
        return sum(map(self._promised.__getitem__, steps))

    def bought(self, last: int, first: int = -1) -> int:
        """Return the rollouts that updates ``first`` to ``last`` were the first to ask for; −1 is
        the student.
        """
        return sum(count for step, count in self._by_step.items() if first <= step <= last)

    def promise(self, step: int, rollouts: int) -> None:
        """Reserve rollouts for an update, beside those that it has asked for already."""
        self._promised[step] = self._by_step[step] + rollouts

    def count(self, key: str, step: int) -> None:
        """Count a rollout that an update asks for; the update with the lowest number has it."""
        first = self._asked.get(key)
        if first is not None and first <= step:
            return
        self._asked[key] = step
        self._by_step[step] += 1
        if first is not None:
            self._by_step[first] -= 1
