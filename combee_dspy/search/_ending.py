"""Why a run ends: nothing is left to read or to learn, a limit, a rule, or a stop callback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from gepa.utils.stop_condition import StopperProtocol

from combee_dspy._private import GEPAState
from combee_dspy.search._batches import Minibatches
from combee_dspy.search._candidates import Compilation
from combee_dspy.search._describe import budget_digest, over_place
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import Gepa
from combee_dspy.search._keeper import Learned
from combee_dspy.search._pool import CandidatePool
from combee_dspy.stopping import RunView, ask

# Updates without a new rollout that end a run, or one for each component where there are more: one
# that proposed nothing may have had an answer that did not parse, or a child that was refused.
_BARREN = 3
_NOTHING = "A full pass found nothing new to learn"
SETTLED = f"{_NOTHING}: every training row was right when it ran last"


@dataclass(eq=False)
class Ending:
    """Decides, in the order of updates, whether the next one begins. Lives on the search's loop.

    Reasons by the clock, the bill or the user's code are effects.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    batches: Minibatches
    gepa: Gepa

    def __post_init__(self) -> None:
        self._turns = max(_BARREN, len(self.task.components))
        self._epochs: list[int] = []  # by update
        self._failed: dict[int, bool] = {}  # by update
        # By component, the first update with a rollout that called its predictor, and without.
        self._first_traced: dict[str, int] = {}
        self._first_missed: dict[str, int] = {}
        self._key, self._over = budget_digest(self.task), over_place(self.task)

    def begin(self) -> None:
        """Note that an update begins, before its minibatch is drawn."""
        self._epochs.append(-1 if self.batches.reads_traces else int(self.batches.epochs))

    def note(self, learned: Learned) -> None:
        """Note a committed update, and warn of components that no rollout has called."""
        step = learned.plan.step
        self._failed[step] = not learned.skipped
        for component in learned.lessons:
            # A rollout teaches about a component by a call, or by failing before it.
            traced = any(
                rollout.error is not None or any(call.is_of(component) for call in rollout.calls)
                for rollout in learned.rollouts
            )
            (self._first_traced if traced else self._first_missed).setdefault(component, step)
        for component in self.untraced(step):
            self.effects.warn(describe_untraced([component]), step=step)

    def untraced(self, last: int) -> list[str]:
        """Return the components that no rollout of the updates up to ``last`` has called.

        Code of a ``dspy.Flex`` has no predictor, and an artifact that edits no instructions learns
        from other calls, too.
        """
        if not self.task.edits_instructions:
            return []
        return [
            component
            for component, missed in self._first_missed.items()
            if component not in self.task.code
            and missed <= last < self._first_traced.get(component, last + 1)
        ]

    async def cut_off(self, step: int, reason: str) -> str:
        """Note that a budget ended the run in the middle of an update; return the reason.

        Not for good while a kill holds what the next effect needs: compiled again later, the run
        goes on.
        """
        self.effects.purse.exhausted = True
        if self.effects.purse.postponed:
            return reason
        data = {"step": step, "reason": reason}
        ended = await self.effects.decide(f"end/{self._key}", lambda: data, step=step)
        return str(ended["reason"])

    async def note_end(self, step: int, reason: str) -> None:
        """Note that a run ended before update ``step``, where no limit has refused any of it.

        A replay ends there, too, whatever its updates and its last tests cost.
        """
        if not (self.effects.refused or self.effects.purse.postponed):
            over = {"step": step, "reason": reason}
            await self.effects.decide(self._over, lambda: over, step=step)

    async def reason(self, step: int) -> str:
        """Return why update ``step`` does not begin; empty where it does."""
        ended = self.effects.past_decision(f"end/{self._key}")
        if ended is not None and step >= ended["step"]:
            self.effects.purse.exhausted = True
            return str(ended["reason"])
        over = self.effects.decided(f"decision/{self._over}")
        if over is not None and step >= over["value"]["step"]:
            return str(over["value"]["reason"])
        if not self.batches.left:
            return self.batches.done
        limit = self.effects.purse.limits.updates
        if limit is not None and step >= limit:
            return f"{step} updates are done"
        return (
            self._nothing_new(step - self.task.behind)
            or await self._stop_callback(step)
            or await self._rule(step)
        )

    def _nothing_new(self, last: int) -> str:
        """Return why a further epoch would teach nothing, by the updates up to ``last``."""
        barren = self._barren(last)
        if not barren:
            return ""
        untraced = self.untraced(last)
        names = ", ".join(map(repr, untraced))
        if set(untraced) == set(self.task.components):
            return f"no rollout called predictor {names}: nothing to learn from"
        fails = any(self._failed[step] for step in barren)
        why = "no new text came of the rows that fail" if fails else "every row was right"
        return f"{_NOTHING}: {why}" + (f"; no rollout called {names}" if untraced else "")

    def _barren(self, last: int) -> Sequence[int]:
        """Return the updates of the newest epoch that is committed as a whole, and earlier ones
        where these are few; none if any of them took a new rollout.
        """
        now = int(self.batches.epochs)
        last_of = {epoch: step for step, epoch in enumerate(self._epochs) if 0 <= epoch < now}
        committed = [epoch for epoch, step in last_of.items() if step <= last]
        if not committed:
            return ()
        first, end = self._epochs.index(committed[-1]), last_of[committed[-1]]
        first = min(first, end + 1 - self._turns)
        if first < 0 or self.effects.purse.bought(end, first):
            return ()
        return range(first, end + 1)

    async def _stop_callback(self, step: int) -> str:
        if not self._knows_the_student(step):
            return ""
        for place, stopper in enumerate(self.gepa.stoppers):
            stops = partial(_stops, stopper, self.gepa.state)
            if await self.effects.decide(f"stopper/{step}/{place}", stops, step=step):
                return f"stop callback {type(stopper).__name__}"
        return ""

    async def _rule(self, step: int) -> str:
        rule = self.task.settings.budget
        if rule is None:
            return ""
        view = self._view(step)
        place = f"stop/{step}/{self._key}"
        return str(await self.effects.decide(place, lambda: ask(rule, view) or "", step=step))

    def _knows_the_student(self, step: int) -> bool:
        """Return whether the student's validation is surely there: earlier it may be, or not."""
        return step >= self.task.behind or self.task.is_serial

    def _view(self, step: int) -> RunView:
        purse, last = self.effects.purse, step - self.task.behind
        validated = last if self._knows_the_student(step) else -2
        return RunView(
            rollouts=purse.bought(last),
            seconds=purse.seconds,
            **asdict(purse.spent),
            updates=step,
            unread=min(step, self.task.behind - 1),
            epochs=self.batches.epochs,
            validation_history=tuple(
                (member.step, member.mean)
                for member in self.pool.members
                if member.step <= validated
            ),
        )


def _stops(stopper: StopperProtocol, state: GEPAState) -> bool:
    return bool(stopper(state))


def describe_untraced(components: Sequence[str]) -> str:
    """Return the warning about components that no rollout has called."""
    names = ", ".join(map(repr, components))
    return (
        f"No rollout called predictor {names}, so nothing was learned for it. "
        "A call counts if a predictor of the program made it, a copy of one, "
        "or a new predictor with an equal signature."
    )
