"""What the next update runs, or why there is none: epochs cut into planned sizes, and the reasons
to stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from statistics import pvariance
from typing import Any

from gepa.utils.stop_condition import StopperProtocol

from combee_dspy._private import GEPAState
from combee_dspy.controllers import BatchView
from combee_dspy.records import BatchDecision, Clamp, Measurement, PowerLawFit, Rollout
from combee_dspy.search._candidates import Compilation, Row
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._untraced import Untraced
from combee_dspy.stopping import RunView, ask
from combee_dspy.streams import derive

__all__ = ["Ends", "Minibatches", "decision_from"]

# Updates without a new rollout that end a run, or one for each component where there are more: one
# that proposed nothing may have had an answer that did not parse, or a child that was refused.
_BARREN = 3
_NOTHING = "A full pass found nothing new to learn"
# rows of an update, after the first, that a budget cuts short; GEPA's own minibatches have as many
_FEWEST = 3


class Minibatches:
    """Draws minibatches. Called in the order of updates.

    Rows are drawn without replacement, epoch by epoch, each epoch in an order of its own; no
    minibatch crosses the end of an epoch. Before the first epoch come the
    traces, each once, in the order in which they were chosen.

    Attributes:
        seen: Rows drawn so far, traces left out.
        left: Rows that the traces, the epoch, or the limit in epochs leave for the next minibatch.
    """

    def __init__(self, task: Compilation) -> None:
        self._task = task
        self._train = task.splits.train
        epochs = task.limits.epochs
        self._last = None if epochs is None else max(1, round(epochs * len(self._train)))
        self._size = len(self._train)
        self._traces = () if task.splits.traces is None else task.splits.traces.rows
        self._read = 0
        self.seen = 0
        self._planned: list[int] = []
        self._measured: list[Measurement] = []
        self._scores: list[float] = []
        self._prompt_tokens = 0

    @property
    def epochs(self) -> float:
        """Rows drawn over the size of the train set."""
        return self.seen / (self._size or 1)

    @property
    def reads_traces(self) -> bool:
        """Whether the next minibatch is one of traces."""
        return self._read < len(self._traces)

    @property
    def left(self) -> int:
        if self.reads_traces:
            return len(self._traces) - self._read
        left = self._size - self.seen % (self._size or 1)
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
        order = list(range(self._size))
        derive(self._task.settings.seed, "epoch", epoch).shuffle(order)
        return order

    def worth(self, step: int, decision: BatchDecision, fitting: Callable[[int], int]) -> int:
        """Return the size that the budget has room for, or 0 where so few rows teach less than a
        validation costs.

        ``fitting`` returns how many of so many rows it has room for: it knows more of that than who
        planned.
        """
        planned = next(
            (clamp.before for clamp in decision.clamps if clamp.name == "budget"), decision.size
        )
        fewest = min(_FEWEST, planned, self.left)
        size = fitting(max(fewest, min(decision.size, self.left)))
        return 0 if step and size < fewest else size

    def decide(self, view: BatchView) -> dict[str, Any]:
        """Return the controller's decision, from a view completed by what is known here, as JSON
        values.
        """
        if self.reads_traces:
            # They are all there at once, and cost no rollout.
            at_once = len(self._traces)
            view = dataclasses.replace(
                view,
                trainset_size=at_once,
                seen=self._read,
                workers=at_once,
                capacity=at_once,
                remaining_rollouts=None,
            )
        else:
            view = dataclasses.replace(
                view,
                trainset_size=self._size,
                seen=self.seen,
                measurements=tuple(self._measured),
                planned=tuple(self._planned),
                score_variance=pvariance(self._scores) if self._scores else None,
                prompt_tokens=self._prompt_tokens / len(self._scores) if self._scores else None,
            )
        return dataclasses.asdict(self._task.settings.controller.plan(view))

    def draw(self, size: int) -> tuple[Row, ...]:
        """Return the rows of the next minibatch.

        Args:
            size: How many, at most :attr:`left`.
        """
        if self.reads_traces:
            chosen = self._traces[self._read : self._read + size]
            self._read += size
            return chosen
        epoch, start = divmod(self.seen, self._size)
        rows = tuple(self._train[index] for index in self._order(epoch)[start : start + size])
        self.seen += len(rows)
        self._planned.append(len(rows))
        return rows

    def measured(self, size: int, seconds: float, rollouts: Sequence[Rollout]) -> None:
        """Note how long an update took, and its parent's rollouts."""
        self._measured.append(Measurement(size, seconds))
        self._scores.extend(rollout.score for rollout in rollouts)
        self._prompt_tokens += sum(
            used.prompt_tokens
            for rollout in rollouts
            for used in rollout.usage
            if used.role == "task"
        )


def decision_from(data: Any) -> BatchDecision:
    """Return the decision that :meth:`Minibatches.decide` has returned as JSON values."""
    fit, clamps = data["fit"], tuple(Clamp(**clamp) for clamp in data["clamps"])
    return BatchDecision(
        data["size"], data["reason"], None if fit is None else PowerLawFit(**fit), clamps
    )


@dataclasses.dataclass(eq=False)
class Ends:
    """Asks limits, rules and stop callbacks. What hangs on the clock, the bill or the user's code
    is decided once.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    batches: Minibatches
    gepa: GepaParts
    untraced: Untraced

    def __post_init__(self) -> None:
        self._rule = self.task.settings.budget
        self._turns = max(_BARREN, len(self.task.components))
        self._epochs: list[int] = []
        self._failed: dict[int, bool] = {}
        self._key = budget_digest(self.task)

    @property
    def count(self) -> int:
        """Updates that were to begin so far."""
        return len(self._epochs)

    def begins(self) -> None:
        """Note that an update begins, before its minibatch is drawn."""
        self._epochs.append(-1 if self.batches.reads_traces else int(self.batches.epochs))

    def ended(self, step: int, *, failed: bool) -> None:
        """Note of an update whether any of its rows failed."""
        self._failed[step] = failed

    @property
    def settled(self) -> str:
        """Why a run ends once every training row is right."""
        return f"{_NOTHING}: every training row was right when it ran last"

    async def cut_off(self, step: int, reason: str) -> str:
        """Note that a budget ended the run in the middle of an update, of which nothing is kept;
        return why.
        """
        data = {"step": step, "reason": reason}
        ended = await self.effects.decide(f"end/{self._key}", lambda: data, step=step)
        self.effects.purse.exhausted = True
        return str(ended["reason"])

    async def reason(self, step: int) -> str:
        """Return why update ``step`` does not begin; empty where it does."""
        ended = self.effects.past_decision(f"end/{self._key}")
        if ended is not None and step >= ended["step"]:
            self.effects.purse.exhausted = True
            return str(ended["reason"])
        if not self.batches.left:
            return self.batches.done
        limits = self.effects.purse.limits
        if limits.updates is not None and step >= limits.updates:
            return f"{step} updates are done"
        if barren := self._nothing_new(step - self.task.behind):
            untraced = self.untraced.components(step - self.task.behind)
            if set(untraced) == set(self.task.components):
                return (
                    f"no rollout called predictor {', '.join(map(repr, untraced))}: nothing to"
                    " learn from"
                )
            fails = any(self._failed[update] for update in barren)
            why = "no new text came of the rows that fail" if fails else "every row was right"
            reason = f"{_NOTHING}: {why}"
            return (
                f"{reason}; no rollout called {', '.join(map(repr, untraced))}"
                if untraced
                else reason
            )
        if self._seed_is_known(step):
            for place, stopper in enumerate(self.gepa.stoppers):
                stops = partial(_stops, stopper, self.gepa.state)
                if await self.effects.decide(f"stopper/{step}/{place}", stops, step=step):
                    return f"stop callback {type(stopper).__name__}"
        rule = self._rule
        if rule is None:
            return ""
        view = self._view(step)
        return (
            await self.effects.decide(
                f"stop/{step}/{self._key}", lambda: ask(rule, view) or "", step=step
            )
            or ""
        )

    def _seed_is_known(self, step: int) -> bool:
        """Return whether the student's validation is surely there: before, it may be there or
        not.
        """
        return step >= self.task.behind or self.task.is_serial

    def _nothing_new(self, last: int) -> Sequence[int]:
        """Return the updates of the last whole epoch that is committed, and enough of them, if they
        bought nothing.
        """
        now = int(self.batches.epochs)
        past = [(epoch, step) for step, epoch in enumerate(self._epochs) if 0 <= epoch < now]
        whole = {epoch for epoch, _ in past} - {epoch for epoch, step in past if step > last}
        steps = [step for epoch, step in past if whole and epoch == max(whole)]
        first = min(steps[0], steps[-1] + 1 - self._turns) if steps else -1
        if first < 0 or self.effects.purse.bought(steps[-1], first):
            return ()
        return range(first, steps[-1] + 1)

    def _view(self, step: int) -> RunView:
        purse, last = self.effects.purse, step - self.task.behind
        seen = last if self._seed_is_known(step) else -2
        return RunView(
            rollouts=purse.bought(last),
            calls=purse.spent.calls,
            tokens=purse.spent.tokens,
            dollars=purse.spent.dollars,
            seconds=purse.seconds,
            gpu_seconds=purse.spent.gpu_seconds,
            updates=step,
            unread=min(step, self.task.behind - 1),
            epochs=self.batches.epochs,
            validation_history=tuple(
                (update, mean) for update, mean in self.pool.history if update <= seen
            ),
        )


def _stops(stopper: StopperProtocol, state: GEPAState) -> bool:
    return bool(stopper(state))
