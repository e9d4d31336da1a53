"""GEPA's way to keep: children of a parent drawn from the front, checked, validated, and joined to
the front.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gepa.proposer.base import CandidateProposal, SubsampleEvaluation

from combee_dspy.aggregators import together
from combee_dspy.diversity import Restart, UpdateView
from combee_dspy.operators import OperatorOutcome, operator_weights, visible
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Place, Row
from combee_dspy.search._choices import Finals, Verdict, draw_screen, verdict
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._keeper import Keeper
from combee_dspy.search._merge import Merging
from combee_dspy.search._pool import Member, Pool
from combee_dspy.search._propose import Child, CustomProposer, Proposer
from combee_dspy.search._records import trajectories
from combee_dspy.search._telling import Telling
from combee_dspy.search._update import Learned, Parent, Plan
from combee_dspy.streams import derive

__all__ = ["Pareto"]


@dataclass(slots=True)
class _Checked:
    """A child and what its screen and validation gave."""

    child: Child
    verdict: Verdict
    proposal: CandidateProposal
    to_validate: tuple[Row, ...] = ()
    validation: Mapping[int, Sequence[Rollout]] | None = None


@dataclass(eq=False)
class Pareto(Keeper):
    """GEPA's search over our effects; gepa's own parts decide where they are asked."""

    effects: Effects
    pool: Pool
    parts: GepaParts
    proposer: Proposer
    custom: CustomProposer | None  # in the proposer's place where there is one
    merging: Merging | None
    finals: Finals
    seed: Candidate
    telling: Telling
    screen: int  # rows of one
    anchors: frozenset[
        str
    ]  # row hashes of examples on which no child may score lower than its parent
    run_seed: int
    staleness: int  # updates that begin before one is committed
    restart: Restart | None  # when the next children are made from the seed's text

    def __post_init__(self) -> None:
        # The last update that begins before the seed's validation is known.
        self._early = self.staleness if self.parts.plain else -1
        self._visible = visible(self.seed.texts)
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
        """Return the candidate that gepa's selector draws, after a merge where one is due."""
        weights = operator_weights(self._outcomes, self.proposer.labels, step)
        if step <= self._early:
            # There is one candidate yet, which gepa's own parts would choose: its validation need
            # not be waited for.
            return Parent(self.seed, 0, self.parts.known_components(self._visible, step), weights)
        state = self.pool.state
        if self.staleness and step == self._early + 1:
            for early in range(1, step):
                self.telling.begin(early)
            for _ in range(step):
                self._next_component(self.seed, 0)
        self.telling.begin(step)
        merged = None if self.merging is None else await self.merging.attempt(step)
        if merged is not None:
            self.telling.end(step, accepted=merged)
            self.telling.begin(step)
        reason = self.restart.due(self._progress) if self.restart is not None else None
        index = 0 if reason else self.parts.selector.select_candidate_idx(state)
        if reason:
            self._restarted.add(step)
            self.effects.log.emit(
                "warning", {"text": f"starting again from the seed: {reason}"}, step=step
            )
        member = self.pool.members[index]
        self.telling.selected(member)
        turn = state.named_predictor_id_to_update_next_for_program_candidate[index]
        components = self.parts.known_components(self._visible, turn)
        if self.staleness and components is not None:
            self._next_component(member.candidate, index)
        return Parent(member.candidate, index, components, weights)

    def _next_component(self, candidate: Candidate, index: int) -> None:
        """Let gepa's selector go on to the next component of a candidate."""
        self.parts.components(self.pool.state, [], [], index, dict(candidate.texts))

    def sampled(self, plan: Plan) -> None:
        self.telling.sampled(plan)

    def select(self, plan: Plan, rollouts: Sequence[Rollout]) -> Sequence[str]:
        parent = plan.parent
        program = self.effects.programs.of(parent.candidate)
        found = trajectories(program, [row.example for row in plan.rows], rollouts)
        scores = [one.score for one in rollouts]
        texts = dict(parent.candidate.texts)
        return list(self.parts.components(self.pool.state, found, scores, parent.index, texts))

    async def propose(self, learned: Learned) -> Sequence[Child]:
        """Return the children of what was learned; none where nothing was."""
        step, parent = learned.plan.step, learned.plan.parent
        if step > self._early:
            self._tell(learned)
        if learned.skipped:
            return ()
        children: Sequence[Child]
        if self.custom is not None:
            children = await self.custom.children(learned, parent.candidate)
        else:
            children = await self.proposer.children(
                learned, parent.candidate, learned.plan.children, parent.weights
            )
        for child in children:
            data = {
                "candidate": child.candidate.id,
                "texts": dict(child.candidate.texts),
                "parents": [parent.candidate.id],
                "operator": child.operator,
                "components": child.components,
            }
            self.effects.log.emit("candidate", data, step=step)
            self.proposed = True
            self.telling.proposed(step, child)
        return children

    def _tell(self, learned: Learned) -> None:
        """Tell gepa's state of an update's rollouts: before it proposes, or of an early one, as it
        is committed.
        """
        parent = learned.plan.parent
        self.telling.begin(learned.plan.step)
        self.telling.evaluated(learned)
        if not learned.skipped:
            if parent.components is not None and not self.staleness:
                # Known before the rollouts were there; asked now, so that gepa's counters move when
                # they do in gepa.
                self._next_component(parent.candidate, parent.index)
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
        if not self.parts.ordered:
            return await together(self._checked(learned, child, places) for child in proposed)
        ran = await asyncio.gather(*(self._ran(learned, child, places) for child in proposed))
        # Parts of the user's are asked child after child, and on what every earlier update has
        # left.
        await turn()
        judged = [
            self._judged(learned, child, places, after)
            for child, after in zip(proposed, ran, strict=True)
        ]
        return list(
            await asyncio.gather(*(self._validated(one, learned.plan.step) for one in judged))
        )

    async def _checked(self, learned: Learned, child: Child, places: Sequence[int]) -> _Checked:
        after = await self._ran(learned, child, places)
        return await self._validated(self._judged(learned, child, places, after), learned.plan.step)

    async def _ran(
        self, learned: Learned, child: Child, places: Sequence[int]
    ) -> Sequence[Rollout]:
        rows, place = learned.plan.rows, Place("screen", learned.plan.step)
        return await asyncio.gather(
            *(self.effects.rollout(child.candidate, rows[one], place) for one in places)
        )

    def _judged(
        self, learned: Learned, child: Child, places: Sequence[int], after: Sequence[Rollout]
    ) -> _Checked:
        parent, rows = learned.plan.parent, learned.plan.rows
        before = [learned.rollouts[place] for place in places]
        judged = verdict(
            [one.score for one in before],
            [one.score for one in after],
            whole=len(places) == len(rows),
        )
        lost = [
            place
            for place, old, new in zip(places, before, after, strict=True)
            if rows[place].hash in self.anchors and new.score < old.score
        ]
        proposal = _as_proposal(child, parent, [rows[place] for place in places], before, after)
        if lost:
            judged = replace(
                judged, accepted=False, reason=f"it scores lower on {len(lost)} anchors"
            )
        elif self.parts.acceptance is not None:
            accepted = bool(self.parts.acceptance.should_accept(proposal, self.pool.state))
            judged = replace(judged, accepted=accepted, reason="acceptance_criterion decides")
        data = {
            "candidate": child.candidate.id,
            "parent": parent.candidate.id,
            "rows": len(places),
            "score": judged.score,
            "parent_score": judged.parent_score,
            "accepted": judged.accepted,
            "reason": judged.reason,
        }
        self.effects.log.emit("screened", data, step=learned.plan.step)
        return _Checked(
            child, judged, proposal, self.pool.rows_to_validate() if judged.accepted else ()
        )

    async def _validated(self, checked: _Checked, step: int) -> _Checked:
        if checked.verdict.accepted:
            checked.validation = await self.pool.validate(
                checked.child.candidate, checked.to_validate, step
            )
        return checked

    def _screened(self, learned: Learned) -> tuple[int, ...]:
        """Return which positions of the minibatch children run on."""
        rows = learned.plan.rows
        anchored = [place for place, row in enumerate(rows) if row.hash in self.anchors]
        stream = derive(self.run_seed, "screen", learned.plan.step)
        return draw_screen(len(rows), self.screen, anchored, stream)

    async def commit(self, learned: Learned, checked: Sequence[_Checked]) -> None:
        """Join the children that were validated, in order."""
        step, parent, accepted = learned.plan.step, learned.plan.parent, False
        if step <= self._early:
            self._tell(learned)
        refused = [
            (one.proposal, "" if one.validation is not None else one.verdict.reason)
            for one in checked
        ]
        self.telling.screened(learned, refused)
        for one in checked:
            lift = None
            if one.validation is not None:
                member = self.pool.join(one.child.candidate, (parent.index,), step, one.validation)
                lift = member.mean - self.pool.members[parent.index].mean
                accepted = True
                if self.merging is not None:
                    self.merging.found_candidate()
                self.telling.accepted(step, member, one.proposal)
            self._outcomes.append(
                OperatorOutcome(one.child.operator, step, lift, one.validation is not None)
            )
        if self.restart is not None:
            front = [self.pool.members[index].candidate for index in self.pool.front]
            similarity = await self.proposer.similarity(front)
            self._progress.append(
                UpdateView(self.pool.best.mean, similarity, step in self._restarted)
            )
        self.telling.end(step, accepted=accepted)

    async def result(self) -> Member:
        """Return the best candidate on validation, with a further draw of those within its reach
        where that helps.
        """
        return await self.finals.choose(self.pool)


def _as_proposal(
    child: Child,
    parent: Parent,
    rows: Sequence[Row],
    before: Sequence[Rollout],
    after: Sequence[Rollout],
) -> CandidateProposal:
    return CandidateProposal(
        candidate=dict(child.candidate.texts),
        parent_program_ids=[parent.index],
        subsample_indices=[row.index for row in rows],
        subsample_scores_before=[one.score for one in before],
        subsample_scores_after=[one.score for one in after],
        eval_before=_subsample(before),
        eval_after=_subsample(after),
        tag="reflective_mutation",
        metadata={"operator": child.operator},
    )


def _subsample(rollouts: Sequence[Rollout]) -> SubsampleEvaluation:
    objectives = [dict(one.objective_scores) for one in rollouts]
    return SubsampleEvaluation(
        scores=[one.score for one in rollouts],
        outputs=[one.prediction for one in rollouts],
        objective_scores=objectives if any(objectives) else None,
        trajectories=None,
    )
