"""The reasons why no further update begins."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from combee_dspy.search._batches import Batches
from combee_dspy.search._describe import stable_repr
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._pool import Pool
from combee_dspy.stopping import RunView, StoppingRule, ask

__all__ = ["Ends"]

# Updates without a new rollout that end a run, or one for each component where there are more: one that proposed
# nothing may have had an answer that did not parse, or a child that was refused.
_BARREN = 3


class Ends:
    """Asks limits, rules and stop callbacks. What hangs on the clock, the bill or the user's code is decided once.

    Args:
        effects: The way to the world.
        pool: The validated candidates.
        batches: Knows what is left of an epoch.
        parts: gepa's parts.
        rule: When to stop; ``None`` where only limits do.
        behind: Update i knows of the validations of updates up to i − behind.
        components: How many take turns.
    """

    def __init__(
        self,
        effects: Effects,
        pool: Pool,
        batches: Batches,
        parts: GepaParts,
        rule: StoppingRule | None,
        *,
        behind: int,
        components: int,
    ) -> None:
        self._effects = effects
        self._pool = pool
        self._batches = batches
        self._parts = parts
        self._rule = rule
        self._behind = behind
        self._turns = max(_BARREN, components)
        self._epochs: list[int] = []
        # A larger budget is another decision: a run goes on with it.
        limits = stable_repr((effects.purse.limits, rule)).encode()
        self._key = hashlib.blake2b(limits, digest_size=6).hexdigest()

    @property
    def begun(self) -> int:
        """Updates that were to begin so far."""
        return len(self._epochs)

    def begins(self) -> None:
        """Note that an update begins, before its minibatch is drawn."""
        self._epochs.append(int(self._batches.epochs))

    async def cut_off(self, step: int, reason: str) -> str:
        """Note that a budget ended the run in the middle of an update, of which nothing is kept; return why."""
        data = {"step": step, "reason": reason}
        ended = await self._effects.decide(f"end/{self._key}", lambda: data, step=step)
        return str(ended["reason"])

    async def reason(self, step: int) -> str:
        """Return why update ``step`` does not begin; empty where it does."""
        ended = self._effects.known(f"end/{self._key}")
        if ended is not None and step >= ended["step"]:
            return str(ended["reason"])
        if not self._batches.left:
            return f"{self._batches.epochs:g} epochs are done"
        limits = self._effects.purse.limits
        if limits.updates is not None and step >= limits.updates:
            return f"{step} updates are done"
        if self._nothing_new(step - self._behind):
            return "a whole epoch bought no new rollout: there is nothing more to learn here"
        if self._seed_is_known(step):
            for place, stopper in enumerate(self._parts.stoppers):
                stops = partial(_stops, stopper, self._pool.state)
                if await self._effects.decide(f"stopper/{step}/{place}", stops, step=step):
                    return f"stop callback {type(stopper).__name__}"
        rule = self._rule
        if rule is None:
            return ""
        view = self._view(step)
        return await self._effects.decide(f"stop/{step}/{self._key}", lambda: ask(rule, view) or "", step=step) or ""

    def _seed_is_known(self, step: int) -> bool:
        """Return whether the student's validation is surely there: before, it may be there or not."""
        return step >= self._behind or not self._parts.plain

    def _nothing_new(self, known: int) -> bool:
        """Return whether the last whole epoch that is committed, and enough updates, bought nothing."""
        now = int(self._batches.epochs)
        past = [(epoch, step) for step, epoch in enumerate(self._epochs) if epoch < now]
        whole = {epoch for epoch, _ in past} - {epoch for epoch, step in past if step > known}
        steps = [step for epoch, step in past if whole and epoch == max(whole)]
        first = min(steps[0], steps[-1] + 1 - self._turns) if steps else -1
        return first >= 0 and not self._effects.purse.bought(steps[-1], first)

    def _view(self, step: int) -> RunView:
        purse, known = self._effects.purse, step - self._behind
        seen = known if self._seed_is_known(step) else -2
        return RunView(
            rollouts=purse.bought(known),
            calls=purse.spent.calls,
            tokens=purse.spent.tokens,
            dollars=purse.spent.dollars,
            seconds=purse.seconds,
            gpu_seconds=purse.spent.gpu_seconds,
            updates=step,
            epochs=self._batches.epochs,
            validation_history=tuple(one for one in self._pool.history if one[0] <= seen),
        )


def _stops(stopper: Any, state: Any) -> bool:
    return bool(stopper(state))
