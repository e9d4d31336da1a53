"""The loop: updates by number, their rollouts, reflections and validations side by side."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from combee_dspy.controllers import BatchView
from combee_dspy.records import BatchDecision, Reflection
from combee_dspy.search._batches import Batches, decision_from, decision_to
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._keeper import Keeper, Parent
from combee_dspy.search._pool import Pool
from combee_dspy.search._update import Learned, Learner, Plan
from combee_dspy.stopping import RunView, StoppingRule, ask

__all__ = ["Loop", "LoopSettings"]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How updates follow each other.

    Attributes:
        staleness: Update i begins when update i − 1 − staleness is released.
        released_early: Whether an update is released when it has proposed, since the next parent does not hang on its
            validation; otherwise when it is committed.
        verdict_lag: Updates after whose proposal a validation is surely known; what rules read is cut to that.
        rescue: Whether reflections that a scan does not cover are offered once more.
        workers: Effects that may be in flight at most.
        children: Children of an update.
        screen: Rows of a screen; ``None`` where there is none.
    """

    staleness: int
    released_early: bool
    verdict_lag: int
    rescue: bool
    workers: int
    children: int
    screen: int | None


@dataclass(slots=True)
class _Update:
    """One update under way."""

    plan: Plan
    parent: Parent
    proposed: asyncio.Future[None]
    committed: asyncio.Future[None]
    began: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None


class Loop:
    """Runs updates until a rule, a budget or an epoch ends it.

    Updates begin, propose and commit in the order of their numbers, whatever comes
    first: given what effects return, the programs do not depend on the number of workers.

    Args:
        effects: The way to the world.
        learner: Turns minibatches into lessons.
        keeper: Keeps them.
        pool: The validated candidates.
        batches: Draws minibatches.
        parts: gepa's parts.
        rule: When to stop; ``None`` where only limits do.
        settings: How updates follow each other.
        seed: The candidate that is the student itself.
        after_commit: Called after each commit with what the update learned; may raise to end the run.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        effects: Effects,
        learner: Learner,
        keeper: Keeper,
        pool: Pool,
        batches: Batches,
        parts: GepaParts,
        rule: StoppingRule | None,
        settings: LoopSettings,
        *,
        seed: Candidate,
        after_commit: Callable[[Learned], Awaitable[None]],
    ) -> None:
        self._effects = effects
        self._learner = learner
        self._keeper = keeper
        self._pool = pool
        self._batches = batches
        self._parts = parts
        self._rule = rule
        self._settings = settings
        self._seed = seed
        self._after_commit = after_commit
        self._seeding: asyncio.Task[Any] | None = None
        self._joining = asyncio.Lock()
        self._updates: deque[_Update] = deque()
        self._begun = 0
        self._epoch_ends: list[tuple[int, int]] = []
        self._lost: dict[int, Learned] = {}
        limits = repr((effects.purse.limits, rule)).encode()
        self._limits = hashlib.blake2b(limits, digest_size=6).hexdigest()
        self.decisions: list[BatchDecision] = []
        self.committed = 0
        self.reason = ""

    async def run(self) -> None:
        """Run updates until one of the reasons to stop holds; :attr:`reason` says which."""
        rows = self._pool.rows_to_validate()
        self._effects.purse.promise(-1, self._pool.size)
        self._seeding = asyncio.ensure_future(self._pool.validate(self._seed, rows, -1))
        try:
            if not self._parts.plain:
                await self._join_seed()
            await self._run_updates()
            await self._join_seed()
        except BudgetReached as reached:
            self.reason = self.reason or str(reached)
            await self._join_seed()
        finally:
            for update in self._updates:
                if update.task is not None:
                    update.task.cancel()
            tasks = [one.task for one in self._updates if one.task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
        self._effects.log.emit("stopped", {"reason": self.reason}, single=True)

    async def _run_updates(self) -> None:
        waiting: deque[_Update] = deque()
        while True:
            while not self.reason and len(waiting) <= self._settings.staleness:
                update = await self._begin(self._begun)
                if update is None:
                    break
                self._begun += 1
                waiting.append(update)
            if not waiting:
                break
            oldest = waiting.popleft()
            await self._ended(oldest.proposed if self._settings.released_early else oldest.committed)
        for update in list(self._updates):
            await self._ended(update.committed)

    async def _ended(self, released: asyncio.Future[None]) -> None:
        """Wait for an update; a budget that ends it ends every later one."""
        try:
            await asyncio.shield(released)
        except BudgetReached as reached:
            if not self.reason:
                step = next(
                    one.plan.step for one in self._updates if one.proposed is released or one.committed is released
                )
                ended = {"step": step, "reason": str(reached)}
                ended = await self._effects.decide(f"end/{self._limits}", lambda: ended, step=step)
                self.reason = ended["reason"]
            raise

    async def _join_seed(self) -> None:
        async with self._joining:
            if not self._pool.started and self._seeding is not None:
                self._pool.join(self._seed, (), -1, await self._seeding)
                self._effects.purse.settle(-1)

    async def _begin(self, step: int) -> _Update | None:
        """Decide what an update runs and start it; ``None`` where there is a reason to stop."""
        self.reason = await self._reason_to_stop(step)
        if self.reason:
            return None
        parent = await self._keeper.parent(step)
        size = await self._size(step)
        if size < 1:
            return None
        rows = self._batches.draw(size, lambda: self._pool.state)
        self._effects.purse.promise(step, self._keeper.rollouts(len(rows)))
        self._keeper.sampled(parent, rows)
        plan = Plan(step, parent.candidate, parent.index, rows, parent.components, self._again(step))
        loop = asyncio.get_running_loop()
        update = _Update(plan, parent, loop.create_future(), loop.create_future())
        for future in (update.proposed, update.committed):
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        before = self._updates[-1] if self._updates else None
        self._updates.append(update)
        update.task = asyncio.ensure_future(self._update(update, before))
        return update

    async def _size(self, step: int) -> int:
        """Return how many rows the next minibatch has; 0, with a reason, where there is no room for one."""
        if self._batches.samples_itself:
            return 1
        view = BatchView(
            step, 0, workers=self._settings.workers, capacity=self._effects.slots.capacity,
            remaining_rollouts=self._effects.purse.room, validation_size=self._pool.size,
            children=self._settings.children, screen=self._settings.screen,
        )  # fmt: skip
        made = await self._effects.decide(f"batch/{step}", lambda: decision_to(self._batches.decide(view)), step=step)
        decision = decision_from(made)
        size, room = min(decision.size, self._batches.left), self._effects.purse.room
        while room is not None and size and self._keeper.rollouts(size) > room:
            size -= 1
        if not size:
            self.reason = f"the budget leaves {room} rollouts, fewer than another update may take"
            return 0
        self.decisions.append(decision)
        self._effects.log.emit("batch", {**made, "size": size}, step=step, single=True)
        return size

    async def _reason_to_stop(self, step: int) -> str:
        ended = self._effects.known(f"end/{self._limits}")
        if ended is not None and step >= ended["step"]:
            return str(ended["reason"])
        if not self._batches.left:
            return f"{self._batches.epochs:g} epochs are done"
        limits = self._effects.purse.limits
        if limits.updates is not None and step >= limits.updates:
            return f"{step} updates are done"
        if self._nothing_new():
            return "a whole epoch bought no new rollout: there is nothing more to learn here"
        if self._pool.started:
            for stopper in self._parts.stoppers:
                name = type(stopper).__name__
                stops = partial(_stops, stopper, self._pool.state)
                if await self._effects.decide(f"stopper/{step}/{name}", stops, step=step):
                    return f"stop callback {name}"
        rule = self._rule
        if rule is None:
            return ""
        view = self._view(step)
        return await self._effects.decide(f"stop/{step}/{self._limits}", lambda: ask(rule, view) or "", step=step) or ""

    def _nothing_new(self) -> bool:
        """Return whether the last whole epoch, as far as it is committed, bought nothing."""
        taken = sum(count for step, count in self._effects.purse.by_step.items() if step < self.committed)
        epoch = int(self._batches.epochs)
        if len(self._epoch_ends) <= epoch:
            self._epoch_ends.append((self.committed, taken))
        return len(self._epoch_ends) > 1 and self.committed > self._epoch_ends[-2][0] and (
            self._epoch_ends[-1][1] == self._epoch_ends[-2][1]
        )  # fmt: skip

    def _view(self, step: int) -> RunView:
        purse = self._effects.purse
        known = (
            step - 1 - self._settings.staleness - (self._settings.verdict_lag if self._settings.released_early else 0)
        )
        return RunView(
            rollouts=sum(count for made, count in purse.by_step.items() if made < self.committed),
            calls=purse.spent.calls,
            tokens=purse.spent.tokens,
            dollars=purse.spent.dollars,
            seconds=purse.seconds,
            gpu_seconds=purse.spent.gpu_seconds,
            updates=step,
            epochs=self._batches.epochs,
            validation_history=tuple(one for one in self._pool.history if one[0] <= known),
        )

    def _again(self, step: int) -> dict[str, tuple[Reflection, ...]]:
        if not self._settings.rescue:
            return {}
        before = self._lost.pop(step - 1 - self._settings.staleness, None)
        return dict(before.lost) if before is not None else {}

    async def _update(self, update: _Update, before: _Update | None) -> None:
        plan, parent = update.plan, update.parent
        try:
            learned = await self._learner.learn(plan, partial(self._keeper.select, parent, plan.rows))
            if before is not None:
                await asyncio.shield(before.proposed)
            await self._join_seed()
            proposed = await self._keeper.propose(learned, parent)
            if self._settings.rescue:
                self._lost[plan.step] = learned
            update.proposed.set_result(None)
            checked = await self._keeper.check(learned, parent, proposed)
            if before is not None:
                await asyncio.shield(before.committed)
            await self._keeper.commit(learned, parent, checked)
            self._close(update, learned)
            await self._after_commit(learned)
            update.committed.set_result(None)
        except BaseException as error:
            for future in (update.proposed, update.committed):
                if not future.done():
                    if isinstance(error, asyncio.CancelledError):
                        future.cancel()
                    else:
                        future.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _close(self, update: _Update, learned: Learned) -> None:
        plan, seconds = update.plan, time.monotonic() - update.began
        self._effects.purse.settle(plan.step)
        self.committed = plan.step + 1
        if not learned.skipped:
            self._batches.measured(len(plan.rows), seconds, [one.score for one in learned.rollouts])
        data = {
            "parent": plan.parent.id, "components": list(learned.lessons), "rows": len(plan.rows),
            "started": update.started, "seconds": seconds, "skipped": learned.skipped,
        }  # fmt: skip
        self._effects.log.emit("update", data, step=plan.step, single=True)
        while self._updates and self._updates[0].committed.done() and len(self._updates) > 1:
            self._updates.popleft()


def _stops(stopper: Any, state: Any) -> bool:
    return bool(stopper(state))
