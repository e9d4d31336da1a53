"""The loop: updates by number, their rollouts, reflections and validations side by side.

Two updates at staleness 1, and what each moment waits for; ``|`` is a wait for the other update::

    time ──────────────────────────────────────────────────────────────────────────────►
    update 0  began ──── proposed ──── gate ──────── committed
    update 1  began ───────────────| proposed ─────────────────| gate ── committed
    update 2                                                    | began ── …

| moment | update 0 | update 1 |
| --- | --- | --- |
| began: its rollouts are asked for | at once | update 0 has begun |
| proposed: its children are made | its lessons | its lessons, update 0's proposal |
| gate: later updates may know of it | update 1 has begun | update 2 has begun, or none will |
| committed: children are in the pool | gate, all validations | the same, and update 0's commit |

Update 2 begins once update 0 is committed. Where one text grows (a trunk) it begins once update 0
has proposed, and a gate waits for two more updates to begin, since verdicts are read that much
later. Screens and validations run between proposal and commit, those of several updates at once,
and the student's beside the first updates.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic

from combee_dspy.events import UpdateEnded
from combee_dspy.search._batches import Ends, Minibatches
from combee_dspy.search._books import Books
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Compilation, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._failures import Failures
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._keeper import C, Keeper, P
from combee_dspy.search._plans import Learned, UpdatePlan
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._sizes import Sizes
from combee_dspy.search._student import Student
from combee_dspy.search._under_way import Update, Updates
from combee_dspy.search._untraced import Untraced
from combee_dspy.search._update import UpdateLearner

__all__ = ["Loop"]


@dataclass(eq=False)
class Loop(Generic[P, C]):
    """Runs updates until a rule, a budget or an epoch ends it.

    Updates begin, propose and commit in the order of their numbers. What an update sees when it
    begins is a function of its number: given what effects return, decisions that read the clock
    among them, the programs do not depend on the number of workers.

    Update i begins when update i − 1 − staleness is released: once it has proposed where one text
    grows, since the next parent does not hang on its validation; otherwise once it is committed.

    Attributes:
        judge: Called with what each update learned, before it is committed; may raise to end the
            run.
        sizes: The sizes of minibatches, and why.
        committed: Updates committed.
        reason: Why no further update began.
    """

    task: Compilation
    effects: Effects
    learner: UpdateLearner
    keeper: Keeper[P, C]
    pool: CandidatePool
    gepa: GepaParts
    failures: Failures
    judge: Callable[[Learned], Awaitable[None]]
    books: Books
    committed: int = field(default=0, init=False)
    reason: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._staleness = self.task.settings.staleness
        self._batches = Minibatches(self.task)
        self.untraced = Untraced(self.task, self.effects)
        self._ends = Ends(
            self.task, self.effects, self.pool, self._batches, self.gepa, self.untraced
        )
        self.sizes = Sizes(self.task, self.effects, self.pool, self._batches, self._cost)
        self._student = Student(self.task, self.effects, self.pool, self.failures)
        self._updates = Updates()

    async def run(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Run updates until one of the reasons to stop holds; :attr:`reason` says which.

        The probe and the first rows run beside the first effects; where cost or time is limited,
        before them.

        Raises:
            ArgumentValueError: The budget does not even pay for the student's validation.
        """
        self._student.promise()
        first = (self.pool.validation[:1], self._batches.first)
        attempt = partial(self.failures.try_first, self.task.seed, *first)
        if self.effects.purse.grants:
            await probe()
            await attempt()
            await self._search()
        else:
            start, capacity = self.effects.buyer.start, self.effects.slots.capacity
            await start.run(probe, attempt, self._search, capacity)

    async def _search(self) -> None:
        self.keeper.begin()
        self._student.start()
        try:
            if self.task.is_serial:
                await self._student.join()
            end = await self._run_updates()
            await self._student.release()
            await self._finished(end)
            await self._student.join()
            await self.books.settle(self._ends.count, self._ends.count - 1)
            self.keeper.ended(None)
        except Exception as error:
            self.keeper.ended(error)
            raise
        finally:
            await self._updates.close()
            await asyncio.gather(self.books.close(), return_exceptions=True)
            await self._student.close()
        self.effects.purse.look(self._ends.count, self._ends.count - 1)

    async def cut_off(self, reason: str) -> None:
        """End a run that hung when its time was over, with what is committed."""
        if not self.pool.started:
            self._student.refuse(f"ends in the middle of the student's validation: {reason}")
        self.keeper.ended(None)
        self.reason = await self._ends.cut_off(self.committed, reason)

    async def _run_updates(self) -> tuple[int, str] | None:
        """Begin updates as long as there is no reason to stop; return which one a budget kept from
        beginning.
        """
        for step in itertools.count():
            if step == self._staleness + 1:
                await self._student.release()
            try:
                await self._may_begin(step)
                begins = not self._updates.spent and await self._begin(step)
            except BudgetReached as reached:
                return step, str(reached)
            if not begins:
                return None
            self._updates.open(step + 1 - self.task.behind)
        return None

    async def _may_begin(self, step: int) -> None:
        """Wait for what update ``step`` knows of."""
        last = step - self.task.behind
        await self._updates.wait(step - 1 - self._staleness, proposed=self.task.is_trunk)
        await self._updates.wait(last)
        self._updates.forget(last)
        self.effects.purse.look(step, last)

    async def _finished(self, end: tuple[int, str] | None) -> None:
        """Let every update that began end, up to the first one that the budget ends: of that one
        nothing is kept.
        """
        self._updates.open(self._ends.count)
        for step in self._updates.steps:
            try:
                await self._updates.wait(step)
            except BudgetReached as reached:
                end = (step, str(reached))
                break
        if end is not None:
            self.reason = await self._ends.cut_off(*end)

    async def _begin(self, step: int) -> bool:
        """Decide what an update runs and start it; not where there is a reason to stop."""
        self.reason = await self._ends.reason(step) or await self._settled(step)
        if self.reason:
            return False
        size = await self.sizes.decide(step, partial(self._commit, step - 1))
        self._ends.begins()
        rows: Sequence[Row] = ()
        if size:
            parent = await self.keeper.parent(step)
            # A merge may have left room for fewer, or for none.
            size = self.sizes.fitting(size)
            rows = self._batches.draw(size) if size else ()
        if not rows:
            left = self.effects.purse.room
            self.reason = f"{left} rollouts left: not enough for another update"
            return False
        children = self.sizes.children(len(rows))
        recorded = rows[0].recorded is not None
        if recorded:  # no rollout is bought: no component has to wait for its turn
            parent = replace(parent, components=self.task.components)
        self.effects.purse.promise(step, self._cost(len(rows), children, recorded=recorded))
        plan = UpdatePlan(step, parent, tuple(rows), children)
        self.keeper.sampled(plan)
        self._updates.start(plan, self._update)
        return True

    def _cost(self, size: int, children: int, *, recorded: bool | None = None) -> int:
        """Return the rollouts that an update takes at most: those of traces cost nothing."""
        rollouts = self.keeper.rollouts(size, children)
        if self._batches.reads_traces if recorded is None else recorded:
            rollouts -= self.pool.beside_validation(size)
        return rollouts

    async def _commit(self, step: int) -> None:
        """Let the updates up to ``step`` commit, and wait for it."""
        self._updates.open(step)
        await self._updates.wait(step)

    async def _settled(self, step: int) -> str:
        """Return why no update could learn any more; empty where one may."""
        size, last = len(self.task.splits.train), step - 1 - self._staleness
        if self._batches.reads_traces or not self.keeper.is_settled(last, size):
            return ""
        # What is under way may find a row that fails, and costs less than another update.
        await self._updates.wait(step - 1, proposed=True)
        return self._ends.settled if self.keeper.is_settled(step - 1, size) else ""

    async def _update(self, update: Update) -> None:
        """Learn on a known text, propose and commit in the order of updates; all else overlaps."""
        plan, before = update.plan, update.before
        learned = await self.learner.learn(plan, partial(self.keeper.select, plan))
        if before is not None:
            await asyncio.shield(before.proposed)
        await self.books.settle(plan.step - 1 - self._staleness, plan.step)
        self.books.learn(learned)
        self.books.relate(plan.step, self.learner.relate(learned, dict(self.books.now)))
        proposed = await self.keeper.propose(learned)
        update.proposed.set_result(None)
        if self.task.is_trunk:
            await self._student.join()  # the first text is tested against the student
        checked = await self.keeper.check(learned, proposed, update.turn)
        took = time.monotonic() - update.began
        await update.turn()
        await self.judge(learned)
        # The controller plans by it, so a resumed run must see the seconds that were measured.
        seconds = await self.effects.decide(f"seconds/{plan.step}", lambda: took, step=plan.step)
        await self._student.join()
        await self.keeper.commit(learned, checked)
        self._close(update, learned, seconds)
        update.committed.set_result(None)

    def _close(self, update: Update, learned: Learned, seconds: float) -> None:
        plan, self.committed = update.plan, update.plan.step + 1
        self.untraced.note(learned)
        self._ends.ended(plan.step, failed=not learned.skipped)
        if not learned.skipped and plan.rows[0].recorded is None:
            self._batches.measured(len(plan.rows), seconds, learned.rollouts)
        event = UpdateEnded(
            plan.parent.candidate.id,
            tuple(learned.lessons),
            len(plan.rows),
            update.started,
            seconds,
            learned.skipped,
        )
        self.effects.log.emit(event, step=plan.step)
