"""What gepa's state and callbacks hear of updates, in gepa's order and in gepa's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from gepa.core.data_loader import ensure_loader

from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Member, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._plans import Learned, UpdatePlan
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._propose import Child
from combee_dspy.search._records import trajectories

__all__ = ["Checked", "Telling"]


@dataclass(frozen=True, slots=True)
class Checked:
    """A child, its rollouts on its screen beside its parent's, and its validation where it got so
    far; ``reason`` says why it did or did not.
    """

    child: Child
    before: Sequence[Rollout]
    after: Sequence[Rollout]
    reason: str
    validation: Mapping[int, Sequence[Rollout]] | None = None


@dataclass(eq=False)
class Telling:
    """Counts iterations and rollouts in gepa's state, and tells the user's callbacks.

    An update is one of gepa's iterations, and so is a merge before it.
    """

    effects: Effects
    pool: CandidatePool
    gepa: GepaParts
    train: InitVar[Sequence[Row]]

    def __post_init__(self, train: Sequence[Row]) -> None:
        self._loader = ensure_loader([row.example for row in train])

    def _tell(self, method: str, **event: object) -> None:
        self.gepa.notify(method, event)

    def run_begun(self, seed: Candidate, run_seed: int) -> None:
        self._tell(
            "on_optimization_start",
            seed_candidate=dict(seed.texts),
            trainset_size=len(self._loader),
            valset_size=len(self.pool.validation),
            config={"seed": run_seed},
        )

    def run_ended(self, error: Exception | None) -> None:
        """Tell of the end; an update that it has cut off proposed nothing."""
        if not self.pool.started:
            return
        state = self.gepa.state
        if error is not None:
            self._tell("on_error", iteration=state.i + 1, exception=error, will_continue=False)
        for step in list(self.gepa.notes):
            self.end(step, accepted=False)
        if error is None:
            self._tell(
                "on_optimization_end",
                best_candidate_idx=self.pool.best.index,
                total_iterations=state.i,
                total_metric_calls=state.total_num_evals,
                final_state=state,
            )

    def begin(self, step: int) -> None:
        """Begin an iteration, unless the update has one."""
        state = self.gepa.state
        if step in self.gepa.notes:
            return
        self._tell("on_state_saved", iteration=state.i + 1, run_dir=self.gepa.log_dir)
        self.gepa.begin(step)
        self._tell(
            "on_iteration_start", iteration=state.i + 1, state=state, trainset_loader=self._loader
        )

    def end(self, step: int, *, accepted: bool) -> None:
        self._tell(
            "on_iteration_end",
            iteration=self.gepa.end(step),
            state=self.gepa.state,
            proposal_accepted=accepted,
        )

    def selected(self, member: Member) -> None:
        state = self.gepa.state
        self._tell(
            "on_candidate_selected",
            iteration=state.i + 1,
            candidate_idx=member.index,
            candidate=dict(member.candidate.texts),
            score=state.program_full_scores_val_set[member.index],
        )

    def sampled(self, plan: UpdatePlan) -> None:
        """Tell of the minibatch, and that the parent runs on it."""
        if not self.gepa.listens:
            return
        iteration, ids = self.gepa.state.i + 1, [row.index for row in plan.rows]
        self._tell(
            "on_minibatch_sampled",
            iteration=iteration,
            minibatch_ids=ids,
            trainset_size=len(self._loader),
        )
        parents = list(self.pool.members[plan.parent.index].parents)
        self._evaluation_begins(iteration, plan.parent.index, plan.rows, parents)

    def evaluated(self, learned: Learned) -> None:
        plan, parent = learned.plan, learned.plan.parent
        iteration, scores = (
            self.gepa.iteration(plan.step),
            [rollout.score for rollout in learned.rollouts],
        )
        self.gepa.notes[plan.step] |= {
            "selected_program_candidate": parent.index,
            "subsample_ids": [row.index for row in plan.rows],
            "subsample_scores": scores,
        }
        if self.gepa.listens:
            program = self.effects.programs.of(parent.candidate)
            traced = trajectories(program, [row.example for row in plan.rows], learned.rollouts)
            self._evaluation_ends(
                iteration,
                parent.index,
                scores,
                [trajectory["prediction"] for trajectory in traced],
                list(self.pool.members[parent.index].parents),
                trajectories=traced,
            )
        self.gepa.state.increment_evals(len(learned.rollouts))
        if learned.skipped:
            self._tell(
                "on_evaluation_skipped",
                iteration=iteration,
                candidate_idx=parent.index,
                reason="all_scores_perfect",
                scores=scores,
                is_seed_candidate=parent.index == 0,
            )

    def reflected(self, learned: Learned) -> None:
        """Tell of what proposers will read."""
        if not self.gepa.listens:
            return
        parent, iteration = learned.plan.parent, self.gepa.iteration(learned.plan.step)
        components = list(learned.reflections)
        dataset = {
            name: [dict(reflection.record) for reflection in reflections]
            for name, reflections in learned.reflections.items()
        }
        self._tell(
            "on_reflective_dataset_built",
            iteration=iteration,
            candidate_idx=parent.index,
            components=components,
            dataset=dataset,
        )
        self._tell(
            "on_proposal_start",
            iteration=iteration,
            parent_candidate=dict(parent.candidate.texts),
            components=components,
            reflective_dataset=dataset,
        )

    def proposed(self, step: int, child: Child) -> None:
        if not self.gepa.listens:
            return
        texts = {name: child.candidate.texts[name] for name in child.components}
        iteration = self.gepa.iteration(step)
        self._tell(
            "on_proposal_end",
            iteration=iteration,
            new_instructions=texts,
            prompts={},
            raw_lm_outputs={},
        )

    def screening(self, plan: UpdatePlan, rows: Sequence[Row]) -> None:
        """Tell that a child runs on some rows of the minibatch."""
        if self.gepa.listens:
            self._evaluation_begins(self.gepa.iteration(plan.step), None, rows, [plan.parent.index])

    def screened(self, learned: Learned, children: Sequence[Checked]) -> None:
        """Tell of the rollouts of each child, and why it was refused, before any is accepted.

        That is gepa's order.
        """
        iteration, state = self.gepa.iteration(learned.plan.step), self.gepa.state
        for child in children:
            objectives = [dict(rollout.objective_scores) for rollout in child.after]
            self._evaluation_ends(
                iteration,
                None,
                [rollout.score for rollout in child.after],
                [rollout.prediction for rollout in child.after],
                [learned.plan.parent.index],
                objectives=objectives if any(objectives) else None,
            )
        if children:
            state.increment_evals(sum(len(child.after) for child in children))
        for child in children:
            if child.validation is None:
                self._tell(
                    "on_candidate_rejected",
                    iteration=iteration,
                    old_score=sum(rollout.score for rollout in child.before),
                    new_score=sum(rollout.score for rollout in child.after),
                    reason=child.reason,
                )

    def accepted(self, step: int, member: Member, after: Sequence[Rollout]) -> None:
        self._tell(
            "on_candidate_accepted",
            iteration=self.gepa.iteration(step),
            new_candidate_idx=member.index,
            new_score=sum(rollout.score for rollout in after),
            parent_ids=list(member.parents),
        )

    def _evaluation_begins(
        self, iteration: int, index: int | None, rows: Sequence[Row], parents: list[int]
    ) -> None:
        self._tell(
            "on_evaluation_start",
            iteration=iteration,
            candidate_idx=index,
            batch_size=len(rows),
            capture_traces=True,
            parent_ids=parents,
            inputs=[row.example for row in rows],
            is_seed_candidate=index == 0,
        )

    def _evaluation_ends(
        self,
        iteration: int,
        index: int | None,
        scores: list[float],
        outputs: list[Any],
        parents: list[int],
        *,
        trajectories: list[Any] | None = None,
        objectives: Any = None,
    ) -> None:
        self._tell(
            "on_evaluation_end",
            iteration=iteration,
            candidate_idx=index,
            scores=scores,
            parent_ids=parents,
            has_trajectories=trajectories is not None,
            outputs=outputs,
            trajectories=trajectories,
            objective_scores=objectives,
            is_seed_candidate=index == 0,
        )
