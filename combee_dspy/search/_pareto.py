"""Keeps what a run learns as GEPA does: validated children of parents drawn from the front."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gepa.proposer.reflective_mutation.base import ReflectionComponentSelector

from combee_dspy.aggregators import together
from combee_dspy.diversity import UpdateView
from combee_dspy.events import CandidateScreened, WarningRaised
from combee_dspy.operators import visible
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import EffectPlace, Member
from combee_dspy.search._choices import choose_best, draw_screen, passes_screen
from combee_dspy.search._custom import CustomProposer
from combee_dspy.search._keeper import Checked, Child, Keeper, Learned, Parent, UpdatePlan
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._propose import Proposer
from combee_dspy.search._records import trajectories
from combee_dspy.streams import derive


@dataclass(eq=False)
class Pareto(Keeper):
    """Searches as GEPA does.

    Attributes:
        custom: Makes the children in the place of the proposer, where there is one.
    """

    pool: CandidatePool
    proposer: Proposer
    custom: CustomProposer | None

    def __post_init__(self) -> None:
        self._task, self._effects, self._gepa = self.pool.task, self.pool.effects, self.pool.gepa
        task, settings = self._task, self._task.settings
        self._settings = settings
        self._selects, self._screen = settings.component_selector, settings.search.screen
        self._turns = Turns(visible(task.seed.texts), self._selects)
        self._progress: list[UpdateView] = []
        self._restarted: set[int] = set()
        self._children: dict[int, Sequence[Child]] = {}  # by update, until they are checked
        self._checked: dict[int, Sequence[Checked]] = {}  # by update, until they are committed

    async def begin(self) -> None:
        self._gepa.begin_run(self._task.seed)

    def ended(self, error: Exception | None) -> None:
        self._gepa.end_run(error)

    def rollouts(self, size: int, run: int, children: int) -> int:
        """Return the rollouts of the parent, and of every child's screen and validation."""
        rows = self.pool.beside_validation(size)
        screen = rows if size <= self._screen else min(rows, self._screen)
        return min(rows, run) + children * (screen + self.pool.size)

    async def parent(self, step: int) -> Parent:
        """Return the candidate that gepa's selector draws."""
        if not self._task.is_serial and step <= self._settings.staleness:
            # There is one candidate yet: its validation need not be waited for.
            return Parent(self._task.seed, 0, self._turns.take(0))
        if self._task.is_serial:
            self._gepa.begin_iteration()
        restart = self._settings.diversity.restart
        reason = None if restart is None else restart.due(self._progress)
        index = 0 if reason else self._gepa.select()
        if reason:
            self._restarted.add(step)
            restarts = WarningRaised(f"starting again from the seed: {reason}")
            self._effects.emit(restarts, step=step)
        member = self.pool.members[index]
        self._gepa.callbacks.selected(member)
        return Parent(member.candidate, index, self._turns.take(index))

    def sampled(self, plan: UpdatePlan) -> None:
        self._gepa.callbacks.sampled(plan)

    def select(self, plan: UpdatePlan, rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what the user's selector chooses, by the rollouts and gepa's state."""
        parent = plan.parent
        if isinstance(self._selects, str):
            return parent.components or ()
        traced = trajectories(self._effects.programs, plan, rollouts)
        scores = [rollout.score for rollout in rollouts]
        texts = dict(parent.candidate.texts)
        return list(self._selects(self._gepa.state, traced, scores, parent.index, texts))

    async def propose(self, learned: Learned) -> None:
        """Make the children of what was learned; none where nothing was."""
        step, parent = learned.plan.step, learned.plan.parent
        if self._task.is_serial:
            self._gepa.evaluated(learned)
        if learned.skipped:
            if not self._settings.staleness:
                self._turns.give_back(parent.index)  # in GEPA, nobody had a turn
            return
        children: Sequence[Child]
        if self.custom is not None:
            children = await self.custom.children(learned, parent.candidate)
        else:
            children = await self.proposer.children(
                learned, parent.candidate, learned.plan.children
            )
        for child in children:
            event = child.candidate.proposed(
                (parent.candidate.id,), child.operator, child.components
            )
            self._effects.emit(event, step=step)
            self.proposed = True
            self._gepa.callbacks.proposed(child)
        self._children[step] = children

    async def check(self, learned: Learned) -> None:
        """Run all children at once: each on its screen, and on validation rows if it passes."""
        plan, proposed = learned.plan, self._children.pop(learned.plan.step, ())
        stream = derive(self._settings.seed, "screen", plan.step)
        places = draw_screen(len(plan.rows), self._screen, stream)
        for _ in proposed:
            self._gepa.callbacks.screening(plan, [plan.rows[place] for place in places])
        self._checked[plan.step] = await together(
            self._check(learned, child, places) for child in proposed
        )

    async def _check(self, learned: Learned, child: Child, places: Sequence[int]) -> Checked:
        plan = learned.plan
        step, place = plan.step, EffectPlace("screen", plan.step)
        before = [learned.rollouts[index] for index in places]
        after = await asyncio.gather(
            *(self._effects.rollout(child.candidate, plan.rows[index], place) for index in places)
        )
        old, new = [rollout.score for rollout in before], [rollout.score for rollout in after]
        accepted, reason = passes_screen(old, new, whole=len(places) == len(plan.rows))
        event = CandidateScreened(
            candidate=child.candidate.id,
            parent=plan.parent.candidate.id,
            rows=len(places),
            score=fmean(new),
            parent_score=fmean(old),
            accepted=accepted,
            reason=reason,
        )
        self._effects.emit(event, step=step)
        validation = None
        if accepted:
            validation = await self.pool.validate(child.candidate, self.pool.validation, step)
        return Checked(child, before, after, reason, validation)

    async def commit(self, learned: Learned) -> None:
        """Join the children that were validated, in order."""
        step, parent, accepted = learned.plan.step, learned.plan.parent, False
        checked = self._checked.pop(step)
        if not self._task.is_serial:
            self._gepa.begin_iteration()
            self._gepa.evaluated(learned)
        self._gepa.screened(learned.plan, checked)
        for result in checked:
            passed = False
            if result.validation is not None:
                member = self.pool.join(
                    result.child.candidate, (parent.index,), step, result.validation
                )
                self._turns.add_child(parent.index)
                accepted = True
                self._gepa.callbacks.accepted(member, result)
                # Where nothing is validated, both are NaN, and neither is worse.
                passed = not member.mean < self.pool.members[parent.index].mean
            self.proposer.shares.judge(step, result.child.candidate, passed=passed)
        self._progress.append(UpdateView(self.pool.best.mean, step in self._restarted))
        self._gepa.end_iteration(accepted=accepted)

    async def result(self) -> Member:
        """Return the best candidate on validation."""
        return self.pool.select(*choose_best(self.pool.members))


class Turns:
    """Lets components take turns; a child goes on where its parent's turn was, as in GEPA.

    Args:
        names: The components.
        selector: ``"round_robin"``, ``"all"``, or the user's.
    """

    def __init__(self, names: tuple[str, ...], selector: str | ReflectionComponentSelector) -> None:
        self._names = names
        self._selector = selector
        self._turns = [0]  # by candidate, the student first

    def take(self, index: int) -> tuple[str, ...] | None:
        """Return what the next update of a candidate edits.

        ``None`` where the user's selector decides: it reads the rollouts.
        """
        if not isinstance(self._selector, str):
            return None
        if self._selector == "all":
            return self._names
        turn = self._turns[index]
        self._turns[index] += 1
        return (self._names[turn % len(self._names)],)

    def give_back(self, index: int) -> None:
        """Let the component that had its turn have it again."""
        self._turns[index] -= 1

    def add_child(self, parent: int) -> None:
        """Note that a child of a candidate has joined the others."""
        self._turns.append(self._turns[parent])
