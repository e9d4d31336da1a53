"""GEPA's way to keep: children of a parent drawn from the front, checked, validated, and joined to
the front.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gepa.proposer.reflective_mutation.base import ReflectionComponentSelector

from combee_dspy.aggregators import together
from combee_dspy.diversity import Restart, UpdateView
from combee_dspy.events import CandidateScreened, WarningRaised
from combee_dspy.operators import OperatorOutcome, operator_weights, visible
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Member, Place
from combee_dspy.search._choices import Verdict, choose_best, draw_screen, verdict
from combee_dspy.search._custom import CustomProposer
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import Gepa
from combee_dspy.search._keeper import Keeper
from combee_dspy.search._pool import Pool
from combee_dspy.search._propose import Child, Proposer
from combee_dspy.search._records import trajectories
from combee_dspy.search._telling import Screened, Telling
from combee_dspy.search._turns import Turns
from combee_dspy.search._update import Learned, Parent, Plan
from combee_dspy.streams import derive

__all__ = ["Pareto"]


@dataclass(slots=True)
class _Checked:
    """A child and what its screen and validation gave."""

    child: Child
    verdict: Verdict
    before: Sequence[Rollout]
    after: Sequence[Rollout]
    validation: Mapping[int, Sequence[Rollout]] | None = None


@dataclass(eq=False)
class Pareto(Keeper[Sequence[Child], list[_Checked]]):
    """GEPA's search over our effects."""

    effects: Effects
    pool: Pool
    gepa: Gepa
    proposer: Proposer
    custom: CustomProposer | None  # in the proposer's place where there is one
    seed: Candidate
    telling: Telling
    selects: str | ReflectionComponentSelector  # what an update edits
    screen: int  # rows of one
    # row hashes of examples on which no child may score lower than its parent
    anchors: frozenset[str]
    run_seed: int
    staleness: int  # updates that begin before one is committed
    is_serial: bool  # whether the student is in the pool before the first update begins
    restart: Restart | None  # when the next children are made from the seed's text

    def __post_init__(self) -> None:
        self._turns = Turns(visible(self.seed.texts), self.selects, self.pool.members)
        self._outcomes: list[OperatorOutcome] = []
        self._progress: list[UpdateView] = []
        self._restarted: set[int] = set()

    def begun(self) -> None:
        self.telling.run_begun(self.seed, self.run_seed)

    def ended(self, error: Exception | None) -> None:
        self.telling.run_ended(error)

    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts of the parent, and of every child's screen and validation."""
        rows = self.pool.beside_validation(size)
        screen = rows if size <= self.screen else min(rows, self.screen + len(self.anchors))
        return rows + children * (screen + self.pool.size)

    async def parent(self, step: int) -> Parent:
        """Return the candidate that gepa's selector draws."""
        weights = operator_weights(self._outcomes, self.proposer.labels, step)
        if not self.is_serial and step <= self.staleness:
            # There is one candidate yet: its validation need not be waited for.
            return Parent(self.seed, 0, self._turns.take(0), weights)
        self.telling.begin(step)
        reason = self.restart.due(self._progress) if self.restart is not None else None
        index = 0 if reason else self.gepa.selector.select_candidate_idx(self.gepa.state)
        if reason:
            self._restarted.add(step)
            restarts = WarningRaised(f"starting again from the seed: {reason}")
            self.effects.log.emit(restarts, step=step)
        member = self.pool.members[index]
        self.telling.selected(member)
        return Parent(member.candidate, index, self._turns.take(index), weights)

    def sampled(self, plan: Plan) -> None:
        self.telling.sampled(plan)

    def select(self, plan: Plan, rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what the user's selector chooses, by the rollouts and gepa's state."""
        parent = plan.parent
        if isinstance(self.selects, str):
            return parent.components or ()
        program = self.effects.programs.of(parent.candidate)
        traced = trajectories(program, [row.example for row in plan.rows], rollouts)
        scores = [rollout.score for rollout in rollouts]
        texts = dict(parent.candidate.texts)
        return list(self.selects(self.gepa.state, traced, scores, parent.index, texts))

    async def propose(self, learned: Learned) -> Sequence[Child]:
        """Return the children of what was learned; none where nothing was."""
        step, parent = learned.plan.step, learned.plan.parent
        if self.is_serial:
            self._tell(learned)
        if learned.skipped:
            if not self.staleness:
                self._turns.give_back(parent.index)  # in GEPA, nobody had a turn
            return ()
        children: Sequence[Child]
        if self.custom is not None:
            children = await self.custom.children(learned, parent.candidate)
        else:
            children = await self.proposer.children(
                learned, parent.candidate, learned.plan.children, parent.weights
            )
        for child in children:
            event = child.candidate.proposed(
                (parent.candidate.id,), child.operator, tuple(child.components)
            )
            self.effects.log.emit(event, step=step)
            self.proposed = True
            self.telling.proposed(step, child)
        return children

    def _tell(self, learned: Learned) -> None:
        """Tell gepa's state of an update's rollouts.

        Before it proposes where updates go one after another; else as it is committed.
        """
        self.telling.begin(learned.plan.step)
        self.telling.evaluated(learned)
        if not learned.skipped:
            self.telling.reflected(learned)

    async def check(
        self, learned: Learned, proposed: Sequence[Child], turn: Callable[[], Awaitable[None]]
    ) -> list[_Checked]:
        """Run every child on its screen, and those that pass on the validation rows, all at
        once.
        """
        places = self._screened(learned)
        for _ in proposed:
            self.telling.screening(learned.plan, [learned.plan.rows[place] for place in places])
        return await together(self._checked(learned, child, places) for child in proposed)

    async def _checked(self, learned: Learned, child: Child, places: Sequence[int]) -> _Checked:
        rows, place = learned.plan.rows, Place("screen", learned.plan.step)
        after = await asyncio.gather(
            *(self.effects.rollout(child.candidate, rows[index], place) for index in places)
        )
        checked = self._judged(learned, child, places, after)
        if checked.verdict.accepted:
            checked.validation = await self.pool.validate(
                child.candidate, self.pool.validation, learned.plan.step
            )
        return checked

    def _judged(
        self, learned: Learned, child: Child, places: Sequence[int], after: Sequence[Rollout]
    ) -> _Checked:
        parent, rows = learned.plan.parent, learned.plan.rows
        before = [learned.rollouts[place] for place in places]
        judged = verdict(
            [rollout.score for rollout in before],
            [rollout.score for rollout in after],
            whole=len(places) == len(rows),
        )
        lost = [
            place
            for place, old, new in zip(places, before, after, strict=True)
            if rows[place].hash in self.anchors and new.score < old.score
        ]
        if lost:
            judged = replace(
                judged, accepted=False, reason=f"it scores lower on {len(lost)} anchors"
            )
        event = CandidateScreened(
            candidate=child.candidate.id,
            parent=parent.candidate.id,
            rows=len(places),
            score=judged.score,
            parent_score=judged.parent_score,
            accepted=judged.accepted,
            reason=judged.reason,
        )
        self.effects.log.emit(event, step=learned.plan.step)
        return _Checked(child, judged, before, after)

    def _screened(self, learned: Learned) -> tuple[int, ...]:
        """Return which positions of the minibatch children run on."""
        rows = learned.plan.rows
        anchored = [place for place, row in enumerate(rows) if row.hash in self.anchors]
        stream = derive(self.run_seed, "screen", learned.plan.step)
        return draw_screen(len(rows), self.screen, anchored, stream)

    async def commit(self, learned: Learned, checked: Sequence[_Checked]) -> None:
        """Join the children that were validated, in order."""
        step, parent, accepted = learned.plan.step, learned.plan.parent, False
        if not self.is_serial:
            self._tell(learned)
        self.telling.screened(
            learned,
            [
                Screened(
                    child.before,
                    child.after,
                    "" if child.validation is not None else child.verdict.reason,
                )
                for child in checked
            ],
        )
        for result in checked:
            lift = None
            if result.validation is not None:
                member = self.pool.join(
                    result.child.candidate, (parent.index,), step, result.validation
                )
                lift = member.mean - self.pool.members[parent.index].mean
                self._turns.turn(member.index)
                accepted = True
                self.telling.accepted(step, member, result.after)
            self._outcomes.append(
                OperatorOutcome(result.child.operator, step, lift, result.validation is not None)
            )
        if self.restart is not None:
            front = [self.pool.members[index].candidate for index in sorted(self.gepa.front)]
            similarity = await self.proposer.similarity(front)
            self._progress.append(
                UpdateView(self.pool.best.mean, similarity, step in self._restarted)
            )
        self.telling.end(step, accepted=accepted)

    async def result(self) -> Member:
        """Return the best candidate on validation."""
        return choose_best(self.pool.members, self.effects)
