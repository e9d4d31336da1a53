"""gepa's state, kept for what users of ``dspy.GEPA`` pass: selectors, stoppers, callbacks, W&B.

Where any of the user's own parts is set, updates go one after another, as gepa's iterations do, and
the parts are called at the moments at which gepa calls them. Else only built-in selectors read the
state, and it takes in an update as that one is committed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

from gepa.logging.experiment_tracker import create_experiment_tracker
from gepa.logging.utils import log_detailed_metrics_after_discovering_new_program
from gepa.proposer.reflective_mutation.base import CandidateSelector
from gepa.strategies.candidate_selector import (
    CurrentBestCandidateSelector,
    EpsilonGreedyCandidateSelector,
    ParetoCandidateSelector,
    TopKParetoCandidateSelector,
)
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.utils import FileStopper
from gepa.utils.stop_condition import StopperProtocol

from combee_dspy._private import GEPAState, ValsetEvaluation, new_state
from combee_dspy.operators import visible
from combee_dspy.records import Rollout
from combee_dspy.rollouts import output_of
from combee_dspy.search._callbacks import Callbacks
from combee_dspy.search._candidates import Candidate, Compilation, Member
from combee_dspy.search._keeper import Checked, Learned, UpdatePlan
from combee_dspy.search._rollouts import Programs

_SELECTORS: Mapping[str, Callable[[random.Random], CandidateSelector]] = {
    "pareto": lambda rng: ParetoCandidateSelector(rng=rng),
    "current_best": lambda _: CurrentBestCandidateSelector(),
    "epsilon_greedy": lambda rng: EpsilonGreedyCandidateSelector(epsilon=0.1, rng=rng),
    "top_k_pareto": lambda rng: TopKParetoCandidateSelector(k=5, rng=rng),
}


class Gepa:
    """gepa's state of one run, and the user's parts that read it. Lives on the search's loop.

    An update is one of gepa's iterations.

    Attributes:
        stoppers: The user's, and the file ``gepa.stop`` in ``log_dir``.
        experiment: gepa's way to W&B, where ``use_wandb`` is set.
        callbacks: Calls the user's.
    """

    def __init__(self, task: Compilation, programs: Programs) -> None:
        settings = task.settings
        chosen = settings.candidate_selection_strategy
        rng = random.Random(settings.seed)  # noqa: S311 - gepa's own stream, by its own seed
        self._selector = _SELECTORS[chosen](rng) if isinstance(chosen, str) else chosen
        self.stoppers: tuple[StopperProtocol, ...] = settings.gepa.stop_callbacks
        if settings.log_dir is not None:
            self.stoppers += (FileStopper(f"{settings.log_dir}/gepa.stop"),)
        self.experiment = create_experiment_tracker(
            use_wandb=settings.use_wandb,
            wandb_api_key=settings.wandb_api_key,
            wandb_init_kwargs=settings.wandb_init_kwargs,
        )
        self.callbacks = Callbacks(task, programs)
        self._settings = settings
        self._size, self._most = len(task.splits.validation), task.limits.rollouts
        self._best = 0
        self._iterates = False

    @property
    def state(self) -> GEPAState:
        """Gepa's state; there is one once the student has joined."""
        if self.callbacks.state is None:
            raise RuntimeError("gepa's state was asked for before the student was validated")
        return self.callbacks.state

    @property
    def _front(self) -> set[int]:
        fronts = self.state.get_pareto_front_mapping().values()
        return {index for front in fronts for index in front}

    def begin_run(self, seed: Candidate) -> None:
        """Note that the run begins, before any effect."""
        self.callbacks.notify(
            "on_optimization_start",
            seed_candidate=dict(seed.texts),
            trainset_size=len(self.callbacks.loader),
            valset_size=self._size,
            config={"seed": self._settings.seed},
        )

    def end_run(self, error: Exception | None) -> None:
        """Note how the run ended; an update that it has cut off proposed nothing."""
        if self.callbacks.state is None:
            return
        if error is not None:
            self.callbacks.notify_of_iteration("on_error", exception=error, will_continue=False)
        if self._iterates:
            self.end_iteration(accepted=False)
        if error is None:
            self.callbacks.notify(
                "on_optimization_end",
                best_candidate_idx=self._best,
                total_iterations=self.state.i,
                total_metric_calls=self.state.total_num_evals,
                final_state=self.state,
            )

    def begin_iteration(self) -> None:
        """Count another iteration."""
        state, notify = self.state, self.callbacks.notify_of_iteration
        notify("on_state_saved", run_dir=self._settings.log_dir)
        state.i += 1
        state.full_program_trace.append({"i": state.i})
        self._iterates = True
        notify("on_iteration_start", state=state, trainset_loader=self.callbacks.loader)

    def end_iteration(self, *, accepted: bool) -> None:
        """Note that an update is committed, and whether any child of it is in the pool."""
        self._iterates = False
        self.callbacks.notify_of_iteration(
            "on_iteration_end", state=self.state, proposal_accepted=accepted
        )

    def select(self) -> int:
        """Return the position of the parent that the selector draws."""
        return self._selector.select_candidate_idx(self.state)

    def evaluated(self, learned: Learned) -> None:
        """Note the rollouts of an update's parent, and what proposers will read of them."""
        self.state.full_program_trace[-1] |= {
            "selected_program_candidate": learned.plan.parent.index,
            "subsample_ids": [row.index for row in learned.plan.rows],
            "subsample_scores": [rollout.score for rollout in learned.rollouts],
        }
        self.callbacks.evaluated(learned)
        self.state.increment_evals(len(learned.rollouts))
        self.callbacks.learned(learned)

    def screened(self, plan: UpdatePlan, children: Sequence[Checked]) -> None:
        """Note the rollouts of all children, and which are refused, before any is accepted."""
        self.callbacks.screened(plan, children)
        if children:
            self.state.increment_evals(sum(len(child.after) for child in children))
        self.callbacks.rejected(children)

    def join(self, member: Member, rollouts: Mapping[int, Sequence[Rollout]], best: Member) -> None:
        """Take in a validated candidate; the student first."""
        evaluation = ValsetEvaluation(
            outputs_by_val_id={index: output_of(drawn[0]) for index, drawn in rollouts.items()},
            scores_by_val_id=dict(member.scores),
            objective_scores_by_val_id=_objectives(rollouts),
        )
        self._best = best.index
        if member.parents:
            self._extend(member, evaluation)
        else:
            self.callbacks.state = new_state(
                member.candidate.texts,
                evaluation,
                list(visible(member.candidate.texts)),
                track_best_outputs=self._settings.track_best_outputs,
                frontier_type=self._settings.gepa.frontier_type,
            )
        outputs = dict(evaluation.outputs_by_val_id) if member.parents else None
        self.callbacks.validated(member, best, self._size, outputs)
        if not member.parents:
            self.state.add_budget_hook(self._budget_moved)
        elif member.scores:
            self._log(member, evaluation)

    def _extend(self, member: Member, evaluation: ValsetEvaluation) -> None:
        state, before = self.state, self._front
        evaluations = state.total_num_evals
        state.i = max(state.i, member.step)  # W&B's axis; a growing text begins no iterations
        state.increment_evals(len(member.scores))
        state.num_full_ds_evals += 1
        state.update_state_with_new_program(
            parent_program_idx=list(member.parents),
            new_program=dict(member.candidate.texts),
            valset_evaluation=evaluation,
            run_dir=None,
            num_metric_calls_by_discovery_of_new_program=evaluations,
        )
        self.callbacks.notify_of_iteration(
            "on_pareto_front_updated",
            new_front=sorted(self._front),
            displaced_candidates=sorted(before - self._front),
        )
        if self._iterates:
            trace = state.full_program_trace[-1]
            trace["new_program_idx"] = member.index
            trace.setdefault("new_program_indices", []).append(member.index)
            trace["evaluated_val_indices"] = sorted(member.scores)

    def _log(self, member: Member, evaluation: ValsetEvaluation) -> None:
        """Log to W&B, and not to gepa's logger: the journal has more."""
        log_detailed_metrics_after_discovering_new_program(
            logger=SimpleNamespace(log=lambda _: None),
            gepa_state=self.state,
            new_program_idx=member.index,
            valset_evaluation=evaluation,
            objective_scores=self.state.prog_candidate_objective_scores[member.index],
            experiment_tracker=self.experiment,
            linear_pareto_front_program_idx=self._best,
            valset_size=self._size,
            val_evaluation_policy=FullEvaluationPolicy(),
        )

    def _budget_moved(self, total: int, more: int) -> None:
        self.callbacks.notify_of_iteration(
            "on_budget_updated",
            metric_calls_used=total,
            metric_calls_delta=more,
            metric_calls_remaining=None if self._most is None else max(0, self._most - total),
        )


def _objectives(rollouts: Mapping[int, Sequence[Rollout]]) -> dict[int, dict[str, float]] | None:
    """Return mean scores by row and objective, where the metric names objectives."""
    scores = {
        index: [rollout.objective_scores for rollout in drawn] for index, drawn in rollouts.items()
    }
    if not any(itertools.chain(*scores.values())):
        return None
    return {
        index: {
            name: math.fsum(objectives.get(name, 0.0) for objectives in drawn) / len(drawn)
            for name in dict.fromkeys(itertools.chain(*drawn))
        }
        for index, drawn in scores.items()
    }
