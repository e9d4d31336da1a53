"""What callbacks of gepa's kind are called with: our updates, in gepa's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gepa.core.callbacks import notify_callbacks
from gepa.core.data_loader import DataLoader, ensure_loader

from combee_dspy._private import GEPAState
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Compilation, Member, Row
from combee_dspy.search._keeper import Checked, Child, Learned, UpdatePlan
from combee_dspy.search._records import trajectories
from combee_dspy.search._rollouts import Programs


class Callbacks:
    """Calls the user's callbacks, if there are any. Lives on the search's loop.

    The iteration that they are given is the newest one: beside callbacks, updates go one after
    another.

    Args:
        task: What is compiled.
        programs: Builds candidates' programs, for trajectories.

    Attributes:
        loader: The training examples as gepa loads them.
        state: gepa's, once there is one.
    """

    def __init__(self, task: Compilation, programs: Programs) -> None:
        self._callbacks = list(task.settings.gepa.callbacks)
        self._programs = programs
        self.loader: DataLoader[int, Any] = ensure_loader(
            [row.example for row in task.splits.train]
        )
        self.state: GEPAState | None = None

    def notify(self, method: str, **event: object) -> None:
        """Call a method of every callback; gepa logs what it raises."""
        notify_callbacks(self._callbacks, method, event)

    def notify_of_iteration(self, method: str, **event: object) -> None:
        """Call a method of every callback with an event of the newest iteration."""
        if self.state is not None:
            self.notify(method, iteration=self.state.i + 1, **event)

    def selected(self, member: Member) -> None:
        self.notify_of_iteration(
            "on_candidate_selected",
            candidate_idx=member.index,
            candidate=dict(member.candidate.texts),
            score=member.mean,
        )

    def sampled(self, plan: UpdatePlan) -> None:
        """Call callbacks with a minibatch: the parent of the update runs on it."""
        self.notify_of_iteration(
            "on_minibatch_sampled",
            minibatch_ids=[row.index for row in plan.rows],
            trainset_size=len(self.loader),
        )
        self._evaluation_began(plan.rows, plan.parent.index, self._parents(plan))

    def evaluated(self, learned: Learned) -> None:
        """Call callbacks with the rollouts of an update's parent."""
        if self._callbacks:
            plan = learned.plan
            traced = trajectories(self._programs, plan, learned.rollouts)
            outputs = [trajectory["prediction"] for trajectory in traced]
            index, parents = plan.parent.index, self._parents(plan)
            self._evaluation_ended(learned.rollouts, outputs, index, parents, traced)

    def _parents(self, plan: UpdatePlan) -> list[int]:
        """Return the parents of an update's parent."""
        if self.state is None:
            return []
        parents = self.state.parent_program_for_candidate[plan.parent.index]
        return [parent for parent in parents if parent is not None]

    def learned(self, learned: Learned) -> None:
        """Call callbacks with the records that proposers read, or why there are none."""
        parent = learned.plan.parent
        if learned.skipped:
            self.notify_of_iteration(
                "on_evaluation_skipped",
                candidate_idx=parent.index,
                reason="all_scores_perfect",
                scores=[rollout.score for rollout in learned.rollouts],
                is_seed_candidate=parent.index == 0,
            )
            return
        dataset = learned.dataset
        components = list(dataset)
        self.notify_of_iteration(
            "on_reflective_dataset_built",
            candidate_idx=parent.index,
            components=components,
            dataset=dataset,
        )
        self.notify_of_iteration(
            "on_proposal_start",
            parent_candidate=dict(parent.candidate.texts),
            components=components,
            reflective_dataset=dataset,
        )

    def proposed(self, child: Child) -> None:
        texts = {name: child.candidate.texts[name] for name in child.components}
        self.notify_of_iteration(
            "on_proposal_end", new_instructions=texts, prompts={}, raw_lm_outputs={}
        )

    def screening(self, plan: UpdatePlan, rows: Sequence[Row]) -> None:
        self._evaluation_began(rows, None, [plan.parent.index])

    def screened(self, plan: UpdatePlan, children: Sequence[Checked]) -> None:
        for child in children:
            outputs = [rollout.prediction for rollout in child.after]
            self._evaluation_ended(child.after, outputs, None, [plan.parent.index])

    def rejected(self, children: Sequence[Checked]) -> None:
        for child in children:
            if child.validation is None:
                self.notify_of_iteration(
                    "on_candidate_rejected",
                    old_score=sum(rollout.score for rollout in child.before),
                    new_score=sum(rollout.score for rollout in child.after),
                    reason=child.reason,
                )

    def accepted(self, member: Member, child: Checked) -> None:
        self.notify_of_iteration(
            "on_candidate_accepted",
            new_candidate_idx=member.index,
            new_score=sum(rollout.score for rollout in child.after),
            parent_ids=list(member.parents),
        )

    def validated(
        self, member: Member, best: Member, rows: int, outputs: Mapping[int, object] | None
    ) -> None:
        """Call callbacks with the validation of a candidate; gepa gives no outputs of the first."""
        self.notify_of_iteration(
            "on_valset_evaluated",
            candidate_idx=member.index,
            candidate=dict(member.candidate.texts),
            scores_by_val_id=dict(member.scores),
            average_score=member.mean,
            num_examples_evaluated=len(member.scores),
            total_valset_size=rows,
            parent_ids=list(member.parents),
            is_best_program=best.index == member.index,
            outputs_by_val_id=outputs,
        )

    def _evaluation_began(
        self, rows: Sequence[Row], index: int | None, parents: Sequence[int]
    ) -> None:
        self.notify_of_iteration(
            "on_evaluation_start",
            candidate_idx=index,
            batch_size=len(rows),
            capture_traces=True,
            parent_ids=list(parents),
            inputs=[row.example for row in rows],
            is_seed_candidate=index == 0,
        )

    def _evaluation_ended(
        self,
        rollouts: Sequence[Rollout],
        outputs: Sequence[object],
        index: int | None,
        parents: Sequence[int],
        traced: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        objectives = [dict(rollout.objective_scores) for rollout in rollouts]
        self.notify_of_iteration(
            "on_evaluation_end",
            candidate_idx=index,
            scores=[rollout.score for rollout in rollouts],
            parent_ids=list(parents),
            has_trajectories=traced is not None,
            outputs=outputs,
            trajectories=traced,
            objective_scores=objectives if traced is None and any(objectives) else None,
            is_seed_candidate=index == 0,
        )
