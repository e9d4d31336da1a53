"""The loop: updates by number, their rollouts, reflections and validations side by side.

Two updates at staleness 1, and what each moment waits for; ``|`` is a wait for the other update::

    time ──────────────────────────────────────────────────────────────────────────────►
    update 0  began ──── proposed ──── ready ─────── committed
    update 1  began ───────────────| proposed ─────────────────| ready ─ committed
    update 2                                                    | began ── …

| moment | update 0 | update 1 |
| --- | --- | --- |
| began: its rollouts start | at once | update 0 has begun |
| proposed: its children are there | its lessons | its lessons, update 0's proposal |
| ready: it may commit | update 1 has begun | update 2 has begun, or none will |
| committed: children are in the pool | ready, all validations | the same, and update 0's commit |

Update 2 begins once update 0 is committed. Where one text grows (a trunk) it begins once update 0
has proposed, and an update is ready once two more have begun, since verdicts are read that much
later. Screens and validations run between proposal and commit, those of several updates at once,
and the student's beside the first updates.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from combee_dspy.events import UpdateEnded
from combee_dspy.search._batches import Minibatches
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Compilation
from combee_dspy.search._effects import Effects, cancel
from combee_dspy.search._ending import SETTLED, Ending
from combee_dspy.search._judging import Judging
from combee_dspy.search._keeper import Keeper, Learned, UpdatePlan
from combee_dspy.search._pool import CandidatePool, Student
from combee_dspy.search._progress import Progress
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._update import UpdateLearner


@dataclass(eq=False)
class Loop:
    """Runs updates until a rule, a budget or an epoch ends it.

    Updates begin, propose and commit in the order of their numbers. What an update sees when it
    begins is a function of its number. So the programs do not depend on the number of workers, once
    the effects are fixed, and with them the decisions that read the clock.

    Attributes:
        batches: Plans and draws minibatches.
        ending: Decides whether an update begins.
        student: Its validation runs beside the first updates.
        learner: Runs a minibatch, and makes lessons of it.
        books: Hold the lessons.
        keeper: Makes texts of the lessons, checks them, and keeps the good ones.
        judging: Checks each update before it is committed, and may end the run.
        committed: Updates committed.
        reason: Why no further update began.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    batches: Minibatches
    ending: Ending
    student: Student
    learner: UpdateLearner
    books: Books
    keeper: Keeper
    judging: Judging
    committed: int = field(default=0, init=False)
    reason: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._staleness = self.task.settings.staleness
        self._progress = Progress()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = 0  # updates

    async def run(self) -> None:
        """Run updates until there is a reason to stop, :attr:`reason`.

        Raises:
            ArgumentValueError: The budget ended in the middle of the student's validation.
        """
        await self.keeper.begin()
        try:
            if self.task.is_serial:
                await self.student.join()
            elif self.effects.purse.grants:
                self.student.start()
            await self._begin_updates()
            self.student.start()
            await self._end_updates()
            await self.student.join()
            self.keeper.ended(None)
        except Exception as error:
            self.keeper.ended(error)
            raise
        finally:
            await cancel(*self._tasks)
            await self.student.close()
        self.effects.purse.look(self._begun, self._begun - 1)

    async def _begin_updates(self) -> None:
        """Begin updates as long as there is no reason to stop."""
        for step in itertools.count():
            if step == self._staleness + 1:
                self.student.start()
            try:
                await self._may_begin(step)
                if self._progress.cut is not None or not await self._begin(step):
                    return
            except BudgetReached as reached:
                self._progress.fail(step, reached)
                return
            self._progress.reach("ready", step + 2 - self.task.behind)

    async def _may_begin(self, step: int) -> None:
        """Wait for the updates whose results update ``step`` reads."""
        if self.task.is_trunk:
            await self._progress.wait("proposed", self.task.texts_known(step))
        last = step - self.task.behind
        await self._progress.wait("committed", last + 1)
        self.effects.purse.look(step, last)

    async def _begin(self, step: int) -> bool:
        """Decide what an update runs, and start it; return whether it began."""
        self.reason = await self.ending.reason(step) or await self._settled(step)
        if self.reason:
            return False
        decision = await self.batches.decide(step)
        if await self.batches.is_short(step, decision):
            # Updates under way give back what they do not need, and a larger minibatch is worth the
            # wait for it.
            self._progress.reach("ready", step)
            await self._progress.wait("committed", step)
            self.effects.purse.look(step, step - 1)
            decision = await self.batches.decide(step, "/again")
        size = await self.batches.size(step, decision)
        if not size:
            left, aside = self.effects.purse.room, self.effects.purse.set_aside
            tests = f", beside {aside} to test the lines" if aside else ""
            rollouts = "rollout" if left == 1 else "rollouts"
            self.reason = f"{left} {rollouts} left{tests}: not enough for another update"
            return False
        parent = await self.keeper.parent(step)
        self.ending.begin()
        plan = self.batches.draw(step, parent, size)
        self.keeper.sampled(plan)
        task = asyncio.ensure_future(self._carry_out(plan))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._begun += 1
        return True

    async def _settled(self, step: int) -> str:
        """Return why no update could learn any more; empty where one may."""
        size, last = len(self.task.splits.train), step - 1 - self._staleness
        if self.batches.reads_traces or not self.keeper.is_settled(last, size):
            return ""
        # An update under way may find a row that fails, and costs less than another update.
        await self._progress.wait("proposed", step)
        return SETTLED if self.keeper.is_settled(step - 1, size) else ""

    async def _carry_out(self, plan: UpdatePlan) -> None:
        try:
            await self._update(plan)
        except BaseException as error:
            self._progress.fail(plan.step, error)
            if not isinstance(error, Exception):
                raise

    async def _update(self, plan: UpdatePlan) -> None:
        """Learn, propose, check, commit. Updates propose and commit in order; all else overlaps."""
        step, began, started = plan.step, time.monotonic(), time.time()
        learned = await self.learner.learn(plan)
        await self._progress.wait("proposed", step)
        self.books.learn(learned)
        self.books.relate(step, await self.learner.relate(learned, self.books.now))
        await self.keeper.propose(learned)
        self._progress.reach("proposed", step + 1)
        if self.task.is_trunk:
            await self.student.join()  # the first text is tested against the student
        await self.keeper.check(learned)
        took = time.monotonic() - began
        await self._turn(step)
        await self.judging.check(learned)
        # The controller plans by it, so a resumed run must see the seconds that were measured.
        seconds = await self.effects.decide(f"seconds/{step}", lambda: took, step=step)
        await self.student.join()
        await self.keeper.commit(learned)
        self._close(learned, started, seconds)
        self._progress.reach("committed", step + 1)

    async def _turn(self, step: int) -> None:
        """Wait until an update may commit. Its number alone decides what it sees from here on."""
        await self._progress.wait("ready", step + 1)
        await self._progress.wait("committed", step)

    def _close(self, learned: Learned, started: float, seconds: float) -> None:
        plan, self.committed = learned.plan, learned.plan.step + 1
        self.ending.note(learned)
        if plan.rows[0].recorded is None:
            self.batches.note(learned, seconds)
        event = UpdateEnded(
            plan.parent.candidate.id,
            tuple(learned.lessons),
            len(plan.rows),
            started,
            seconds,
            learned.skipped,
        )
        self.effects.emit(event, step=plan.step)

    async def _end_updates(self) -> None:
        """Let updates commit. One that a budget ends leaves nothing, and neither do later ones."""
        self._progress.reach("ready", self._begun)
        await self._progress.wait_for_commits(self._begun)
        if self._progress.cut is not None:
            step, reached = self._progress.cut
            self.reason = await self.ending.cut_off(step, str(reached))
        elif self.effects.purse.cut:
            self.reason = await self.ending.cut_off(self._begun, self.effects.purse.cut)

    async def cut_off(self, reason: str) -> None:
        """End a run whose time is over, with the updates that are committed."""
        if not self.pool.members:
            self.student.refuse(f"ends in the middle of the student's validation: {reason}")
        self.keeper.ended(None)
        self.reason = await self.ending.cut_off(self.committed, reason)
