"""GEPA's way to keep: children of a parent drawn from the front, checked, validated, and joined to the front."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gepa.core.callbacks import (
    CandidateAcceptedEvent,
    CandidateRejectedEvent,
    CandidateSelectedEvent,
    ErrorEvent,
    EvaluationEndEvent,
    EvaluationSkippedEvent,
    EvaluationStartEvent,
    IterationEndEvent,
    IterationStartEvent,
    MinibatchSampledEvent,
    OptimizationEndEvent,
    OptimizationStartEvent,
    ProposalEndEvent,
    ProposalStartEvent,
    ReflectiveDatasetBuiltEvent,
    StateSavedEvent,
)
from gepa.core.data_loader import ensure_loader
from gepa.proposer.base import CandidateProposal, SubsampleEvaluation

from combee_dspy.diversity import Restart, UpdateView
from combee_dspy.operators import OperatorOutcome, operator_weights, visible
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._custom import CustomProposer
from combee_dspy.search._effects import Effects, Place
from combee_dspy.search._finals import Finals
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._keeper import Keeper, Parent
from combee_dspy.search._merge import Merging
from combee_dspy.search._pool import Member, Pool
from combee_dspy.search._propose import Child, Proposer
from combee_dspy.search._records import trajectories
from combee_dspy.search._screen import Verdict, draw_screen, verdict
from combee_dspy.search._update import Learned
from combee_dspy.streams import derive

__all__ = ["Pareto"]


@dataclass(frozen=True, slots=True)
class _Checked:
    """A child and what its screen and validation gave."""

    child: Child
    verdict: Verdict
    validation: Mapping[int, Sequence[Rollout]] | None
    proposal: CandidateProposal


class Pareto(Keeper):
    """GEPA's search over our effects; gepa's own parts decide where they are asked.

    Args:
        effects: The way to the world.
        pool: The validated candidates.
        parts: gepa's parts.
        proposer: Makes children by operators.
        custom: Makes them by proposers of the user's, or ``None``.
        merging: gepa's merge, or ``None``.
        finals: Chooses the result.
        seed: The candidate that is the student itself.
        train: All train rows, for callbacks.
        screen: Rows of a screen.
        anchors: Row hashes of examples on which no child may score lower than its parent.
        run_seed: The run's seed.
        staleness: How many updates begin before an update is committed.
        restart: When the next children are made from the seed's text, or ``None`` for never.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        effects: Effects,
        pool: Pool,
        parts: GepaParts,
        proposer: Proposer,
        *,
        custom: CustomProposer | None,
        merging: Merging | None,
        finals: Finals,
        seed: Candidate,
        train: Sequence[Row],
        screen: int,
        anchors: frozenset[str],
        run_seed: int,
        staleness: int,
        restart: Restart | None,
    ) -> None:
        self._effects = effects
        self._pool = pool
        self._parts = parts
        self._proposer = proposer
        self._custom = custom
        self._merging = merging
        self._finals = finals
        self._seed = seed
        self._loader = ensure_loader([row.example for row in train])
        self._screen = screen
        self._anchors = anchors
        self._run_seed = run_seed
        self._ahead = staleness > 0
        # The last update that begins before the seed's validation is known.
        self._early = staleness if parts.plain else -1
        self._restart = restart
        self._progress: list[UpdateView] = []
        self._restarted: set[int] = set()
        self._visible = visible(seed.texts)
        self._outcomes: list[OperatorOutcome] = []
        self._iterations: dict[int, int] = {}

    def begun(self) -> None:
        """Tell callbacks that the run begins."""
        sizes = {"trainset_size": len(self._loader), "valset_size": len(self._pool.validation)}
        event = OptimizationStartEvent(seed_candidate=dict(self._seed.texts), config={"seed": self._run_seed}, **sizes)
        self._parts.notify("on_optimization_start", event)

    def ended(self, error: Exception | None) -> None:
        """Tell callbacks that the run has ended; an update that the end has cut off proposed nothing."""
        if not self._pool.started:
            return
        state = self._pool.state
        if error is not None:
            self._parts.notify("on_error", ErrorEvent(iteration=state.i + 1, exception=error, will_continue=False))
        for step in list(self._iterations):
            self._end_iteration(step, accepted=False)
        if error is None:
            event = OptimizationEndEvent(
                best_candidate_idx=self._pool.best.index, total_iterations=state.i,
                total_metric_calls=state.total_num_evals, final_state=state,
            )  # fmt: skip
            self._parts.notify("on_optimization_end", event)

    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts of the parent, and of every child's screen and validation."""
        rows = self._pool.beside_validation(size)
        screen = rows if size <= self._screen else min(rows, self._screen + len(self._anchors))
        return rows + children * (screen + self._pool.size)

    async def parent(self, step: int) -> Parent:
        """Return the candidate that gepa's selector draws, after a merge where one is due."""
        weights = operator_weights(self._outcomes, self._proposer.labels, step)
        if step <= self._early:
            # There is one candidate yet, which gepa's own parts would choose: its validation need not be waited for.
            return Parent(self._seed, 0, self._parts.known_components(self._visible, step), weights)
        state = self._pool.state
        if self._ahead and step == self._early + 1:
            for _ in range(step):
                self._turn(self._seed, 0)
        self._begin_iteration(step)
        merged = None if self._merging is None else await self._merging.attempt(step)
        if merged is not None:
            self._end_iteration(step, accepted=merged)
            self._begin_iteration(step)
        reason = self._restart.due(self._progress) if self._restart is not None else None
        index = 0 if reason else self._parts.selector.select_candidate_idx(state)
        if reason:
            self._restarted.add(step)
            self._effects.log.emit("warning", {"text": f"starting again from the seed: {reason}"}, step=step)
        candidate = self._pool.members[index].candidate
        event = CandidateSelectedEvent(
            iteration=state.i + 1, candidate_idx=index, candidate=dict(candidate.texts),
            score=state.program_full_scores_val_set[index],
        )  # fmt: skip
        self._parts.notify("on_candidate_selected", event)
        turn = state.named_predictor_id_to_update_next_for_program_candidate[index]
        components = self._parts.known_components(self._visible, turn)
        if self._ahead and components is not None:
            self._turn(candidate, index)
        return Parent(candidate, index, components, weights)

    def _turn(self, candidate: Candidate, index: int) -> None:
        """Let gepa's selector go on to the next component of a candidate."""
        self._parts.components(self._pool.state, [], [], index, dict(candidate.texts))

    def sampled(self, parent: Parent, rows: Sequence[Row]) -> None:
        """Tell callbacks of the minibatch and of the parent's run on it."""
        if not self._parts.callbacks:
            return
        iteration = self._pool.state.i + 1
        ids = [row.index for row in rows]
        event = MinibatchSampledEvent(iteration=iteration, minibatch_ids=ids, trainset_size=len(self._loader))
        self._parts.notify("on_minibatch_sampled", event)
        self._parts.notify(
            "on_evaluation_start",
            EvaluationStartEvent(
                iteration=iteration, candidate_idx=parent.index, batch_size=len(rows), capture_traces=True,
                parent_ids=list(self._pool.members[parent.index].parents), inputs=[row.example for row in rows],
                is_seed_candidate=parent.index == 0,
            ),
        )  # fmt: skip

    def select(self, parent: Parent, rows: Sequence[Row], rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Ask gepa's component selector."""
        program = self._effects.programs.of(parent.candidate)
        found = trajectories(program, [row.example for row in rows], rollouts)
        scores = [one.score for one in rollouts]
        texts = dict(parent.candidate.texts)
        return list(self._parts.components(self._pool.state, found, scores, parent.index, texts))

    async def propose(self, learned: Learned, parent: Parent) -> Sequence[Child]:
        """Return the children of what was learned; none where nothing was."""
        if learned.plan.step not in self._iterations:
            self._begin_iteration(learned.plan.step)
        self._evaluated(learned, parent)
        if learned.skipped:
            return ()
        if parent.components is not None and not self._ahead:
            # Known before the rollouts were there; asked now, so that gepa's counters move when they do in gepa.
            self._turn(parent.candidate, parent.index)
        self._reflected(learned, parent)
        if self._custom is not None:
            children = await self._custom.children(learned, parent.candidate)
        else:
            children = await self._proposer.children(learned, parent.candidate, learned.plan.children, parent.weights)
        for child in children:
            texts = {name: child.candidate.texts[name] for name in child.components}
            self._emit_candidate(child, parent, learned.plan.step)
            iteration = self._iterations[learned.plan.step]
            event = ProposalEndEvent(iteration=iteration, new_instructions=texts, prompts={}, raw_lm_outputs={})
            self._parts.notify("on_proposal_end", event)
        return children

    def _emit_candidate(self, child: Child, parent: Parent, step: int) -> None:
        data = {
            "candidate": child.candidate.id, "texts": dict(child.candidate.texts), "parents": [parent.candidate.id],
            "operator": child.operator, "components": child.components,
        }  # fmt: skip
        self._effects.log.emit("candidate", data, step=step)

    async def check(self, learned: Learned, parent: Parent, proposed: object) -> list[_Checked]:
        """Run every child on its screen, and those that pass on the validation rows, all at once."""
        children: Sequence[Child] = proposed  # type: ignore[assignment]  # what propose() returned
        rows = [learned.plan.rows[place] for place in self._screened(learned)]
        for _ in children:
            event = EvaluationStartEvent(
                iteration=self._iterations[learned.plan.step], candidate_idx=None, batch_size=len(rows),
                capture_traces=True, parent_ids=[parent.index], inputs=[row.example for row in rows],
                is_seed_candidate=False,
            )  # fmt: skip
            self._parts.notify("on_evaluation_start", event)
        return list(await asyncio.gather(*(self._checked(learned, parent, child) for child in children)))

    async def _checked(self, learned: Learned, parent: Parent, child: Child) -> _Checked:
        step, rows, places = learned.plan.step, learned.plan.rows, self._screened(learned)
        wanted = [self._effects.rollout(child.candidate, rows[place], Place("screen", step)) for place in places]
        after = await asyncio.gather(*wanted)
        before = [learned.rollouts[place] for place in places]
        judged = verdict([one.score for one in before], [one.score for one in after], whole=len(places) == len(rows))
        lost = [place for place, old, new in zip(places, before, after, strict=True)
                if rows[place].hash in self._anchors and new.score < old.score]  # fmt: skip
        if lost:
            judged = Verdict(False, f"it scores lower on {len(lost)} anchors", judged.score, judged.parent_score)
        proposal = self._as_proposal(child, parent, [rows[place] for place in places], before, after)
        if self._parts.acceptance is not None and not lost:
            accepted = bool(self._parts.acceptance.should_accept(proposal, self._pool.state))
            judged = Verdict(accepted, "acceptance_criterion decides", judged.score, judged.parent_score)
        data = {
            "candidate": child.candidate.id, "parent": parent.candidate.id, "rows": len(places), "score": judged.score,
            "parent_score": judged.parent_score, "accepted": judged.accepted, "reason": judged.reason,
        }  # fmt: skip
        self._effects.log.emit("screened", data, step=step)
        validation = None
        if judged.accepted:
            validation = await self._pool.validate(child.candidate, self._pool.rows_to_validate(), step)
        return _Checked(child, judged, validation, proposal)

    def _screened(self, learned: Learned) -> tuple[int, ...]:
        """Return which positions of the minibatch children run on."""
        rows = learned.plan.rows
        anchored = [place for place, row in enumerate(rows) if row.hash in self._anchors]
        stream = derive(self._run_seed, "screen", learned.plan.step)
        return draw_screen(len(rows), self._screen, anchored, stream)

    async def commit(self, learned: Learned, parent: Parent, checked: object) -> None:
        """Join the children that were validated, in order."""
        children: Sequence[_Checked] = checked  # type: ignore[assignment]  # what check() returned
        step, iteration = learned.plan.step, self._iterations[learned.plan.step]
        if self._ahead:
            # Rollouts are counted where everything else is, in the order of updates.
            self._pool.state.increment_evals(len(learned.rollouts))
        self._tell_screened(children, parent, iteration)
        accepted = False
        for one in children:
            lift = None
            if one.validation is not None:
                member = self._pool.join(one.child.candidate, (parent.index,), step, one.validation)
                lift = member.mean - self._pool.members[parent.index].mean
                accepted = True
                if self._merging is not None:
                    self._merging.found_candidate()
                joined = CandidateAcceptedEvent(
                    iteration=iteration, new_candidate_idx=member.index,
                    new_score=sum(one.proposal.subsample_scores_after or ()), parent_ids=[parent.index],
                )  # fmt: skip
                self._parts.notify("on_candidate_accepted", joined)
            self._outcomes.append(OperatorOutcome(one.child.operator, step, lift, one.validation is not None))
        if self._restart is not None:
            front = [self._pool.members[index].candidate for index in self._pool.front]
            similarity = await self._proposer.similarity(front)
            self._progress.append(UpdateView(self._pool.best.mean, similarity, step in self._restarted))
        self._end_iteration(step, accepted=accepted)

    def _tell_screened(self, children: Sequence[_Checked], parent: Parent, iteration: int) -> None:
        """Tell gepa's state and callbacks of the children's screens, those that were refused first, as gepa does."""
        for one in children:
            after = one.proposal.eval_after
            ended = EvaluationEndEvent(
                iteration=iteration, candidate_idx=None, scores=list(after.scores), has_trajectories=False,
                parent_ids=[parent.index], outputs=list(after.outputs or ()), trajectories=None,
                objective_scores=after.objective_scores, is_seed_candidate=False,
            )  # fmt: skip
            self._parts.notify("on_evaluation_end", ended)
        if children:
            self._pool.state.increment_evals(sum(len(one.proposal.subsample_indices) for one in children))
        for one in children:
            if one.validation is None:
                event = CandidateRejectedEvent(
                    iteration=iteration, old_score=sum(one.proposal.subsample_scores_before or ()),
                    new_score=sum(one.proposal.subsample_scores_after or ()), reason=one.verdict.reason,
                )  # fmt: skip
                self._parts.notify("on_candidate_rejected", event)

    async def result(self) -> Member:
        """Return the best candidate on validation, with a further draw of those within its reach where that helps."""
        return await self._finals.choose(self._pool)

    def _as_proposal(
        self, child: Child, parent: Parent, rows: Sequence[Row], before: Sequence[Rollout], after: Sequence[Rollout]
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

    def _begin_iteration(self, step: int) -> None:
        state = self._pool.state
        saved = StateSavedEvent(iteration=state.i + 1, run_dir=self._pool.log_dir)
        self._parts.notify("on_state_saved", saved)
        state.i += 1
        state.full_program_trace.append({"i": state.i})
        event = IterationStartEvent(iteration=state.i + 1, state=state, trainset_loader=self._loader)
        self._parts.notify("on_iteration_start", event)
        self._iterations[step] = state.i + 1

    def _end_iteration(self, step: int, *, accepted: bool) -> None:
        iteration = self._iterations.pop(step, None)
        if iteration is not None:
            event = IterationEndEvent(iteration=iteration, state=self._pool.state, proposal_accepted=accepted)
            self._parts.notify("on_iteration_end", event)

    def _evaluated(self, learned: Learned, parent: Parent) -> None:
        """Tell gepa's state and callbacks of the parent's run on the minibatch."""
        state, rollouts, iteration = self._pool.state, learned.rollouts, self._iterations[learned.plan.step]
        scores = [one.score for one in rollouts]
        if state.full_program_trace:
            state.full_program_trace[-1] |= {
                "selected_program_candidate": parent.index, "subsample_ids": [row.index for row in learned.plan.rows],
                "subsample_scores": scores,
            }  # fmt: skip
        if self._parts.callbacks:
            self._tell_evaluated(learned, parent, scores)
        if not self._ahead:
            state.increment_evals(len(rollouts))
        if learned.skipped:
            skipped = EvaluationSkippedEvent(
                iteration=iteration, candidate_idx=parent.index, reason="all_scores_perfect", scores=scores,
                is_seed_candidate=parent.index == 0,
            )  # fmt: skip
            self._parts.notify("on_evaluation_skipped", skipped)

    def _tell_evaluated(self, learned: Learned, parent: Parent, scores: list[float]) -> None:
        iteration, rollouts = self._iterations[learned.plan.step], learned.rollouts
        program = self._effects.programs.of(parent.candidate)
        found = trajectories(program, [row.example for row in learned.plan.rows], rollouts)
        parents = list(self._pool.members[parent.index].parents)
        ended = EvaluationEndEvent(
            iteration=iteration, candidate_idx=parent.index, scores=scores, has_trajectories=True, parent_ids=parents,
            outputs=[one["prediction"] for one in found], trajectories=found, objective_scores=None,
            is_seed_candidate=parent.index == 0,
        )  # fmt: skip
        self._parts.notify("on_evaluation_end", ended)

    def _reflected(self, learned: Learned, parent: Parent) -> None:
        """Tell callbacks of what proposers will read."""
        if not self._parts.callbacks:
            return
        iteration, components = self._iterations[learned.plan.step], list(learned.reflections)
        dataset = {name: [dict(one.record) for one in found] for name, found in learned.reflections.items()}
        built = ReflectiveDatasetBuiltEvent(
            iteration=iteration, candidate_idx=parent.index, components=components, dataset=dataset
        )
        self._parts.notify("on_reflective_dataset_built", built)
        begun = ProposalStartEvent(
            iteration=iteration, parent_candidate=dict(parent.candidate.texts), components=components,
            reflective_dataset=dataset,
        )  # fmt: skip
        self._parts.notify("on_proposal_start", begun)


def _subsample(rollouts: Sequence[Rollout]) -> SubsampleEvaluation:
    objectives = [dict(one.objective_scores) for one in rollouts]
    return SubsampleEvaluation(
        scores=[one.score for one in rollouts],
        outputs=[one.prediction for one in rollouts],
        objective_scores=objectives if any(objectives) else None,
        trajectories=None,
    )
