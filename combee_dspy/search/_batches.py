"""Which rows the next update runs: epochs are cut into planned sizes, as far as the budget goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import pvariance

from pydantic import TypeAdapter

from combee_dspy.controllers import BatchView
from combee_dspy.evaluation import perfect_score_of
from combee_dspy.events import BatchPlanned
from combee_dspy.records import BatchDecision, Measurement
from combee_dspy.search._candidates import Compilation, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._keeper import Learned, Parent, UpdatePlan
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.streams import derive

_DECISIONS = TypeAdapter(BatchDecision)
# Rows of an update, after the first, that a budget cuts short; GEPA's own minibatches have as many.
_FEWEST = 3


@dataclass(eq=False)
class Minibatches:
    """Plans and draws minibatches, in the order of updates. Lives on the search's loop.

    Rows are drawn without replacement, epoch by epoch, each epoch in an order of its own; no
    minibatch crosses the end of an epoch. Before the first epoch come the traces, each once, in the
    order in which they were chosen.

    Attributes:
        cost: Returns the rollouts that an update takes at most; see :meth:`Keeper.rollouts`.
        decisions: The sizes of minibatches, and why.
        seen: Training rows drawn so far.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    cost: Callable[[int, int, int], int]
    decisions: list[BatchDecision] = field(default_factory=list, init=False)
    seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        splits, epochs = self.task.splits, self.task.limits.epochs
        self._train = splits.train
        self._traces = () if splits.traces is None else splits.traces.rows
        self._last = None if epochs is None else max(1, round(epochs * len(self._train)))
        self._read = 0  # traces
        self._planned: list[int] = []
        self._measured: list[Measurement] = []
        self._scores: list[float] = []
        self._highest: dict[int, float] = {}  # score of a rollout, by update
        self._prompt_tokens = 0

    @property
    def epochs(self) -> float:
        """Rows drawn over the size of the train set."""
        return self.seen / (len(self._train) or 1)

    @property
    def reads_traces(self) -> bool:
        """Whether the next minibatch is one of traces."""
        return self._read < len(self._traces)

    @property
    def left(self) -> int:
        """Rows that the traces, the epoch, or the limit in epochs leave for the next minibatch."""
        if self.reads_traces:
            return len(self._traces) - self._read
        left = len(self._train) - self.seen % (len(self._train) or 1)
        return left if self._last is None else max(0, min(left, self._last - self.seen))

    @property
    def done(self) -> str:
        """What was read, once nothing is left."""
        if not self._train:
            return "all traces are read"
        return "1 epoch is done" if self.epochs == 1 else f"{self.epochs:g} epochs are done"

    @property
    def first(self) -> Row | None:
        """The row that the first minibatch begins with; ``None`` where that is a trace."""
        return None if self._traces else self._train[self._order(0)[0]]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._train)))
        derive(self.task.settings.seed, "epoch", epoch).shuffle(order)
        return order

    async def size(self, step: int, decision: BatchDecision) -> int:
        """Return the size of the next minibatch; 0 where no rollouts are left for one.

        Raises:
            BudgetReached: A limit on cost does not pay for one.
        """
        size = await self._paid(step, self._affordable(step, decision))
        if size:
            self.decisions.append(decision)
            event = BatchPlanned(size, decision.reason, decision.fit, decision.clamps)
            self.effects.emit(event, step=step)
        return size

    async def decide(self, step: int, again: str = "") -> BatchDecision:
        """Ask the controller, which reads the clock: its answer is recorded.

        Args:
            step: The update.
            again: What tells the answer from an earlier one for the same update.
        """
        planned = await self.effects.decide(
            f"batch/{step}{again}",
            lambda: dataclasses.asdict(self.task.settings.controller.plan(self._view(step))),
            step=step,
        )
        return _DECISIONS.validate_python(planned)

    def _view(self, step: int) -> BatchView:
        settings = self.task.settings
        view = BatchView(
            step,
            len(self._train),
            seen=self.seen,
            workers=self.effects.shared.workers,
            capacity=self.effects.slots.served,
            queued=self.effects.slots.queued,
            gpus=settings.costs.gpus.get("task"),
            remaining_rollouts=self.effects.purse.room,
            validation_size=self.pool.size,
            children=self.task.children,
            screen=None if self.task.is_trunk else settings.search.screen,
            measurements=tuple(self._measured),
            planned=tuple(self._planned),
            score_variance=pvariance(self._scores) if self._scores else None,
            prompt_tokens=self._prompt_tokens / len(self._scores) if self._scores else None,
            turns=len(self.task.components) if self.task.takes_turns and self.task.is_trunk else 1,
        )
        if not self.reads_traces:
            return view
        # They are all there at once, and cost no rollout.
        count = len(self._traces)
        return dataclasses.replace(
            view,
            trainset_size=count,
            seen=self._read,
            workers=count,
            capacity=count,
            remaining_rollouts=None,
        )

    async def is_short(self, step: int, decision: BatchDecision) -> bool:
        """Return whether the budget may lack room for an update beside those under way."""
        purse = self.effects.purse
        if not step or self.task.behind == 1:
            return False  # none is under way
        rollouts = self._cost(decision.size, max(1, self.task.children))
        if any(clamp.name == "budget" for clamp in decision.clamps) or not self._fits(rollouts):
            return True
        # A replay may hold no limit on cost, and waits where the run did.
        if self.effects.past_decision(f"short/{step}") is None and not purse.limits_cost:
            return False
        # Costs depend on what has ended by now: recorded, so that a resumed run waits where this
        # one does.
        return bool(
            await self.effects.decide(f"short/{step}", lambda: purse.is_short(rollouts), step=step)
        )

    def _affordable(self, step: int, decision: BatchDecision) -> int:
        """Return how many rows the budget has room for; 0 where so few teach less than a validation
        costs.
        """
        planned = next(
            (clamp.before for clamp in decision.clamps if clamp.name == "budget"), decision.size
        )
        fewest = min(_FEWEST, planned, self.left)
        most = max(fewest, min(decision.size, self.left))
        size = next((rows for rows in range(most, 0, -1) if self._fits(self._cost(rows, 1))), 0)
        return 0 if step and size < fewest else size

    async def _paid(self, step: int, size: int) -> int:
        """Return how many of so many rows the limits on cost pay for.

        Costs depend on what has ended by now, and a replay may hold no limit: recorded.

        Raises:
            BudgetReached: They pay for too few.
        """
        past, purse = self.effects.past_decision(f"paid/{step}"), self.effects.purse
        if not step or not size or (past is None and not purse.limits_cost):
            return size
        # The first update may take what it needs: without a text nothing is validated.
        purse.keep_validation(self.pool.kept_back(size))
        if past is not None:
            return min(size, past)
        if purse.cut:
            raise BudgetReached(purse.cut)
        # What a row costs is known once rollouts have ended, and traces take none.
        paid = size if self.reads_traces else purse.rows_paid(size, min(_FEWEST, size))
        return int(await self.effects.decide(f"paid/{step}", lambda: paid, step=step))

    def _fits(self, rollouts: int) -> bool:
        room = self.effects.purse.room
        return room is None or rollouts <= room

    def _cost(self, rows: int, children: int) -> int:
        """Return the rollouts that an update takes at most: those of traces cost nothing."""
        return self.cost(rows, 0 if self.reads_traces else rows, children)

    def draw(self, step: int, parent: Parent, size: int) -> UpdatePlan:
        """Draw the next minibatch, and reserve the rollouts of its update.

        Args:
            step: The update.
            parent: What it runs on.
            size: How many rows, at most :attr:`left`.
        """
        most = max(1, self.task.children)
        affordable = (count for count in range(most, 1, -1) if self._fits(self._cost(size, count)))
        children = next(affordable, 1)
        self.effects.purse.promise(step, self._cost(size, children))
        if self.reads_traces:
            rows = self._traces[self._read : self._read + size]
            self._read += size
            self.effects.purse.recorded += size
            # No rollout is bought: no component has to wait for its turn.
            parent = dataclasses.replace(parent, components=self.task.components)
        else:
            epoch, start = divmod(self.seen, len(self._train))
            rows = tuple(self._train[index] for index in self._order(epoch)[start : start + size])
            self.seen += size
            self._planned.append(size)
        last = step - self.task.behind  # what ended since then depends on time
        highest = [score for update, score in self._highest.items() if update <= last]
        perfect_score = perfect_score_of(self.task.settings.perfect_score, highest)
        return UpdatePlan(step, parent, rows, children, perfect_score)

    def note(self, learned: Learned, seconds: float) -> None:
        """Note what an update's rollouts scored and, where it learned, what it took."""
        plan, rollouts = learned.plan, learned.rollouts
        scores = [rollout.score for rollout in rollouts]
        self._highest[plan.step] = max(scores)
        if learned.skipped:
            return
        self._measured.append(Measurement(len(plan.rows), seconds))
        self._scores += scores
        self._prompt_tokens += sum(
            used.prompt_tokens
            for rollout in rollouts
            for used in rollout.usage
            if used.role == "task"
        )
