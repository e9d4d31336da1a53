"""The loop: updates by number, their rollouts, reflections and validations side by side.

Two updates at staleness 1, and what each moment waits for; ``|`` is a wait for the other update::

    time ──────────────────────────────────────────────────────────────────────────────►
    update 0  began ── selected ── proposed ──── gate ──────── committed
    update 1  began ────── selected ────────| proposed ─────────────────| gate ── committed
    update 2                                                            | began ── …

| moment | update 0 | update 1 |
| --- | --- | --- |
| began: its rollouts are asked for | at once | update 0 has begun |
| selected: what it edits is known | its rollouts or lessons | the same, perhaps before update 0 |
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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NoReturn

from combee_dspy.aggregators import together
from combee_dspy.controllers import BatchView
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import BatchDecision, Rollout
from combee_dspy.search._batches import Batches, Ends, decision_from
from combee_dspy.search._books import Books
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Compilation, Place, Row
from combee_dspy.search._effects import VALIDATION, Effects, heard
from combee_dspy.search._failures import Failures
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._keeper import Keeper
from combee_dspy.search._pool import Pool
from combee_dspy.search._under_way import Update, future
from combee_dspy.search._untraced import Untraced
from combee_dspy.search._update import Learned, Learner, Plan

__all__ = ["Loop"]


@dataclass(eq=False)
class Loop:
    """Runs updates until a rule, a budget or an epoch ends it.

    Updates begin, propose and commit in the order of their numbers. What an update sees when it
    begins is a function of its number: given what effects return, the programs do not depend on the
    number of workers.

    Update i begins when update i − 1 − staleness is released: once it has proposed where one text
    grows, since the next parent does not hang on its validation; otherwise once it is committed.

    Attributes:
        judge: Called with what each update learned, before it is committed; may raise to end the
            run.
        decisions: The sizes of minibatches, and why.
        committed: Updates committed.
        reason: Why no further update began.
    """

    task: Compilation
    effects: Effects
    learner: Learner
    keeper: Keeper
    pool: Pool
    parts: GepaParts
    failures: Failures
    judge: Callable[[Learned], Awaitable[None]]
    books: Books
    decisions: list[BatchDecision] = field(default_factory=list, init=False)
    committed: int = field(default=0, init=False)
    reason: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._options = self.task.settings.search
        self._batches = Batches(self.task, self.parts.sampler)
        self.untraced = Untraced(self.task, self.effects.log)
        self._ends = Ends(
            self.task, self.effects, self.pool, self._batches, self.parts, self.untraced
        )
        self._seeding: asyncio.Future[Any] = future()
        self._joining = asyncio.Lock()
        self._first = asyncio.Event()
        self._updates: dict[int, Update] = {}
        self._broken = future()
        self._spent = False

    async def run(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Run updates until one of the reasons to stop holds; :attr:`reason` says which.

        The probe and the first rows run beside the first effects; where cost or time is limited,
        before them.

        Raises:
            ArgumentValueError: The budget does not even pay for the student's validation.
        """
        rows = self.pool.rows_to_validate()
        limits, cost = self.effects.purse.limits, len(rows) * self.pool.draws
        if limits.rollouts is not None and limits.rollouts < cost:
            self._too_small(
                f"leaves no room for the student's validation, which takes {cost} rollouts"
            )
        self.effects.purse.promise(-1, cost)
        first, counted = self._batches.first, self._batches.samples_itself
        attempt = partial(self.failures.try_first, self.task.seed, rows[0], first, counted=counted)
        if self.effects.purse.grants:
            await probe()
            await attempt()
            await self._search(rows)
        else:
            start, capacity = self.effects.buyer.start, self.effects.slots.capacity
            await start.run(probe, attempt, partial(self._search, rows), capacity)

    async def _search(self, rows: Sequence[Row]) -> None:
        self.keeper.begun()
        self._seeding = asyncio.ensure_future(self._validate_seed(rows))
        try:
            if not self.parts.plain:
                await self._join_seed()
            end = await self._run_updates()
            await self._begin_seed()
            await self._finished(end)
            await self._join_seed()
            await self.books.settle(self._ends.begun, self._ends.begun - 1)
            self.keeper.ended(None)
        except Exception as error:
            self.keeper.ended(error)
            raise
        finally:
            tasks = [
                self._seeding,
                *(one.task for one in self._updates.values() if one.task is not None),
            ]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self.books.close(), return_exceptions=True)
            if self._broken.done():
                heard(self._broken)
            if not (self.pool.started or self._seeding.cancelled() or self._seeding.exception()):
                # Cut short before the first commit: the student is the best so far.
                self.pool.join(self.task.seed, (), -1, self._seeding.result())
        self.effects.purse.look(self._ends.begun, self._ends.begun - 1)

    async def cut_off(self, reason: str) -> None:
        """End a run that hung when its time was over, with what is committed."""
        if not self.pool.started:
            self._too_small(f"ends in the middle of the student's validation: {reason}")
        self.keeper.ended(None)
        self.reason = await self._ends.cut_off(self.committed, reason)

    async def _validate_seed(self, rows: Sequence[Row]) -> Mapping[int, Sequence[Rollout]]:
        """Run the student on validation rows, behind the first minibatches: nobody reads its scores
        before they end.

        But before them where a limit on cost or time may end the run: without these scores it has
        no result.
        """
        if self.parts.plain and not self.effects.purse.grants:
            await self._first.wait()
        seed, place = self.task.seed, Place("validation", -1)
        rollouts: Any  # and nothing
        rollouts, _ = await together(
            [
                self.pool.validate(seed, rows, -1),
                self.failures.first(
                    "validation",
                    [self.effects.rollout(seed, row, place, lane=VALIDATION) for row in rows],
                ),
            ]
        )
        return rollouts

    async def _begin_seed(self) -> None:
        await asyncio.sleep(0)  # the updates that have begun ask for their rollouts first
        self._first.set()

    def _too_small(self, problem: str) -> NoReturn:
        remedy = "Give a larger budget, or a smaller valset."
        limits = {
            name: limit
            for name, limit in asdict(self.effects.purse.limits).items()
            if limit is not None
        }
        raise ArgumentValueError("budget", limits, problem, remedy)

    async def _run_updates(self) -> tuple[int, str] | None:
        """Begin updates as long as there is no reason to stop; return which one a budget kept from
        beginning.
        """
        for step in itertools.count():
            if step == self._options.staleness + 1:
                await self._begin_seed()
            try:
                await self._may_begin(step)
                update = None if self._spent else await self._begin(step)
                if (
                    update is not None
                    and update.plan.parent.components is None
                    and self._options.staleness
                ):
                    # A selector of the user's reads gepa's state, which later updates change: it is
                    # asked in order.
                    await self._ended(update.selected)
            except BudgetReached as reached:
                return step, str(reached)
            if update is None:
                return None
            self._open(step + 1 - self.task.behind)
        return None

    async def _may_begin(self, step: int) -> None:
        """Wait for what update ``step`` knows of."""
        known = step - self.task.behind
        if (released := self._updates.get(step - 1 - self._options.staleness)) is not None:
            await self._ended(released.proposed if self.task.is_trunk else released.committed)
        if known in self._updates:
            await self._ended(self._updates[known].committed)
            del self._updates[known]
        self.effects.purse.look(step, known)

    def _open(self, last: int) -> None:
        """Let updates up to ``last`` commit."""
        for step, update in self._updates.items():
            if step <= last and not update.gate.done():
                update.gate.set_result(None)

    async def _ended(self, future: asyncio.Future[None]) -> None:
        """Wait for an update; raise what it failed with, or what broke another one meanwhile."""
        await asyncio.wait({future, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        await (self._broken if self._broken.done() else future)

    async def _finished(self, end: tuple[int, str] | None) -> None:
        """Let every update that began end, up to the first one that the budget ends: of that one
        nothing is kept.
        """
        self._open(self._ends.begun)
        for step, update in sorted(self._updates.items()):
            try:
                await self._ended(update.committed)
            except BudgetReached as reached:
                end = (step, str(reached))
                break
        if end is not None:
            self.reason = await self._ends.cut_off(*end)

    async def _join_seed(self) -> None:
        self._first.set()
        async with self._joining:
            if not self.pool.started:
                try:
                    rollouts = await asyncio.shield(self._seeding)
                except BudgetReached as reached:
                    self._too_small(f"ends in the middle of the student's validation: {reached}")
                self.pool.join(self.task.seed, (), -1, rollouts)

    async def _begin(self, step: int) -> Update | None:
        """Decide what an update runs and start it; ``None`` where there is a reason to stop."""
        self.reason = await self._ends.reason(step) or await self._settled(step)
        if self.reason:
            return None
        decided = None if self._batches.samples_itself else await self._size(step)
        self._ends.begins()
        rows: Sequence[Row] = ()
        if decided != 0:
            parent = await self.keeper.parent(step)
            rows = self._rows(decided)
        if not rows:
            self.reason = (
                f"the budget leaves {self.effects.purse.room} rollouts, fewer than another update"
                " may take"
            )
            return None
        children = self._affordable(
            max(1, self.task.children), 1, lambda count: self.keeper.rollouts(len(rows), count)
        )
        self.effects.purse.promise(step, self.keeper.rollouts(len(rows), children))
        plan = Plan(step, parent, tuple(rows), children)
        self.keeper.sampled(plan)
        update = self._updates[step] = Update(plan, self._updates.get(step - 1))
        update.task = asyncio.ensure_future(self._carry_out(update))
        return update

    async def _settled(self, step: int) -> str:
        """Return why no update could learn any more; empty where one may."""
        size, known = len(self.task.splits.train), step - 1 - self._options.staleness
        if not self.keeper.is_settled(known, size):
            return ""
        # What is under way may find a row that fails, and costs less than another update.
        await self._ended(self._updates[step - 1].proposed)
        return self._ends.settled if self.keeper.is_settled(step - 1, size) else ""

    async def _size(self, step: int) -> int:
        """Return how many rows the next minibatch has, as far as there is room for them."""
        made = await self._decided(step)
        if step and self.task.behind > 1 and await self._is_short(step, decision_from(made)):
            # Updates under way give back what they do not need, and a larger minibatch is worth the
            # wait for it.
            self._open(step - 1)
            await self._ended(self._updates[step - 1].committed)
            self.effects.purse.look(step, step - 1)
            made = await self._decided(step, "/again")
        decision = decision_from(made)
        size = self._batches.worth(step, decision, self._fitting)
        if size:
            self.decisions.append(decision)
            self.effects.log.emit("batch", {**made, "size": size}, step=step, single=True)
        return size

    async def _decided(self, step: int, again: str = "") -> dict[str, Any]:
        view = BatchView(
            step,
            0,
            workers=self.effects.workers,
            capacity=self.effects.slots.served,
            queued=self.effects.slots.queued,
            gpus=self.task.settings.costs.gpus.get("task"),
            remaining_rollouts=self.effects.purse.room,
            validation_size=self.pool.size,
            children=self.task.children,
            screen=None if self.task.is_trunk else self._options.screen,
        )
        key = f"batch/{step}{again}"
        made: dict[str, Any] = await self.effects.decide(
            key, lambda: self._batches.decide(view), step=step
        )
        return made

    async def _is_short(self, step: int, decision: BatchDecision) -> bool:
        """Return whether the budget leaves less room than an update beside those under way may
        take.
        """
        size, children = decision.size + len(self.task.anchors), max(1, self.task.children)
        purse, rollouts = self.effects.purse, self.keeper.rollouts(size, children)
        if any(clamp.name == "budget" for clamp in decision.clamps) or (
            purse.room is not None and rollouts > purse.room
        ):
            return True
        # A replay holds no limit on cost, and waits where the run did.
        if self.effects.known(f"short/{step}") is None and not purse.limits_cost:
            return False
        # Costs depend on what has ended by now: recorded, so that a resumed run waits where this
        # one does.
        return bool(
            await self.effects.decide(f"short/{step}", lambda: purse.is_short(rollouts), step=step)
        )

    def _fitting(self, size: int) -> int:
        """Return how many of so many rows the budget has room for."""
        return self._affordable(
            size, 0, lambda rows: self.keeper.rollouts(rows + len(self.task.anchors), 1)
        )

    def _affordable(self, most: int, least: int, rollouts: Callable[[int], int]) -> int:
        """Return the largest number whose rollouts the budget has room for; ``least`` is not asked
        for.
        """
        room = self.effects.purse.room
        return next(
            (one for one in range(most, least, -1) if room is None or rollouts(one) <= room), least
        )

    def _rows(self, decided: int | None) -> Sequence[Row]:
        """Return the next minibatch; none where there is no room for one any more, as after a
        merge.
        """
        if decided is not None:
            size = self._fitting(decided)
            return self._batches.draw(size, lambda: self.pool.state) if size else ()
        rows = self._batches.draw(0, lambda: self.pool.state)
        return () if self._fitting(len(rows)) < len(rows) else rows

    async def _update(self, update: Update) -> None:
        """Learn on a known text, propose and commit in the order of updates; all else overlaps."""
        plan, before = update.plan, update.before
        learned = await self.learner.learn(plan, partial(self._select, update))
        if not update.selected.done():
            update.selected.set_result(None)
        if before is not None:
            await asyncio.shield(before.proposed)
        await self.books.settle(plan.step - 1 - self._options.staleness, plan.step)
        self.books.learn(learned)
        self.books.relate(plan.step, self.learner.relate(learned, dict(self.books.now)))
        proposed = await self.keeper.propose(learned)
        update.proposed.set_result(None)
        if self.task.is_trunk:
            await self._join_seed()  # the first text is tested against the student
        turn = partial(self._turn, update, before)
        checked = await self.keeper.check(learned, proposed, turn)
        took = time.monotonic() - update.began
        await turn()
        await self.judge(learned)
        # The controller plans by it, so a resumed run must see the seconds that were measured.
        seconds = await self.effects.decide(f"seconds/{plan.step}", lambda: took, step=plan.step)
        await self._join_seed()
        await self.keeper.commit(learned, checked)
        self._close(update, learned, seconds)
        update.committed.set_result(None)

    def _select(self, update: Update, rollouts: Sequence[Rollout]) -> Sequence[str]:
        chosen = self.keeper.select(update.plan, rollouts)
        update.selected.set_result(None)
        return chosen

    async def _turn(self, update: Update, before: Update | None) -> None:
        """Wait until an update may commit: what it sees of the others is a function of its number
        from here on.
        """
        await update.gate
        if before is not None:
            await asyncio.shield(before.committed)

    async def _carry_out(self, update: Update) -> None:
        """Run an update, and tell whoever waits for it what ended it."""
        try:
            await self._update(update)
        except asyncio.CancelledError:
            for future in (update.selected, update.proposed, update.committed):
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            if isinstance(error, BudgetReached):
                self._spent = True
            elif not self._broken.done():
                self._broken.set_exception(error)
            for future in (update.selected, update.proposed, update.committed):
                if not future.done():
                    future.set_exception(error)
                    heard(future)
        finally:
            update.before = None  # nothing is held of updates that have ended

    def _close(self, update: Update, learned: Learned, seconds: float) -> None:
        plan, self.committed = update.plan, update.plan.step + 1
        self.untraced.note(learned)
        self._ends.ended(plan.step, failed=not learned.skipped)
        if not learned.skipped:
            self._batches.measured(len(plan.rows), seconds, learned.rollouts)
        data = {
            "parent": plan.parent.candidate.id,
            "components": list(learned.lessons),
            "rows": len(plan.rows),
            "started": update.started,
            "seconds": seconds,
            "skipped": learned.skipped,
        }
        self.effects.log.emit("update", data, step=plan.step, single=True)
