"""How many rows the next minibatch has, as far as the budget has room for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.controllers import BatchView
from combee_dspy.events import BatchPlanned
from combee_dspy.records import BatchDecision
from combee_dspy.search._batches import Minibatches, decision_from
from combee_dspy.search._candidates import Compilation
from combee_dspy.search._effects import Effects
from combee_dspy.search._pool import CandidatePool

__all__ = ["Sizes"]


@dataclass(eq=False)
class Sizes:
    """Asks the controller, and the budget. Called in the order of updates.

    Attributes:
        rollouts: Returns the rollouts that an update of so many rows and children takes at most.
        decisions: The sizes of minibatches, and why.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    batches: Minibatches
    rollouts: Callable[[int, int], int]
    decisions: list[BatchDecision] = field(default_factory=list, init=False)

    async def decide(self, step: int, commit_earlier: Callable[[], Awaitable[None]]) -> int:
        """Return the size of a minibatch; 0 where the budget has no room for one.

        ``commit_earlier`` waits until the updates under way are committed.
        """
        planned = await self._plan(step)
        if step and self.task.behind > 1 and await self._is_short(step, decision_from(planned)):
            # Updates under way give back what they do not need, and a larger minibatch is worth the
            # wait for it.
            await commit_earlier()
            self.effects.purse.look(step, step - 1)
            planned = await self._plan(step, "/again")
        decision = decision_from(planned)
        size = self.batches.worth(step, decision, self.fitting)
        if size:
            self.decisions.append(decision)
            event = BatchPlanned(size, decision.reason, decision.fit, decision.clamps)
            self.effects.log.emit(event, step=step)
        return size

    async def _plan(self, step: int, again: str = "") -> dict[str, Any]:
        settings = self.task.settings
        view = BatchView(
            step,
            0,
            workers=self.effects.workers,
            capacity=self.effects.slots.served,
            queued=self.effects.slots.queued,
            gpus=settings.costs.gpus.get("task"),
            remaining_rollouts=self.effects.purse.room,
            validation_size=self.pool.size,
            children=self.task.children,
            screen=None if self.task.is_trunk else settings.search.screen,
        )
        planned: dict[str, Any] = await self.effects.decide(
            f"batch/{step}{again}", lambda: self.batches.decide(view), step=step
        )
        return planned

    async def _is_short(self, step: int, decision: BatchDecision) -> bool:
        """Return whether the budget leaves less room than an update beside those under way may
        take.
        """
        purse = self.effects.purse
        rollouts = self.rollouts(decision.size, max(1, self.task.children))
        if any(clamp.name == "budget" for clamp in decision.clamps) or (
            purse.room is not None and rollouts > purse.room
        ):
            return True
        # A replay holds no limit on cost, and waits where the run did.
        if self.effects.past_decision(f"short/{step}") is None and not purse.limits_cost:
            return False
        # Costs depend on what has ended by now: recorded, so that a resumed run waits where this
        # one does.
        return bool(
            await self.effects.decide(f"short/{step}", lambda: purse.is_short(rollouts), step=step)
        )

    def fitting(self, size: int) -> int:
        """Return how many of so many rows the budget has room for."""
        return self._affordable(size, 0, lambda rows: self.rollouts(rows, 1))

    def children(self, rows: int) -> int:
        """Return how many children of an update of so many rows the budget has room for."""
        most = max(1, self.task.children)
        return self._affordable(most, 1, lambda count: self.rollouts(rows, count))

    def _affordable(self, most: int, least: int, rollouts: Callable[[int], int]) -> int:
        """Return the largest number whose rollouts the budget has room for; ``least`` is not asked
        for.
        """
        room = self.effects.purse.room
        numbers = range(most, least, -1)
        return next((n for n in numbers if room is None or rollouts(n) <= room), least)
