"""What users of ``dspy.GEPA`` pass, called with gepa's state at the moments at which gepa calls it.

Where any of it is set, updates go one after another, as gepa's iterations do. Without it, gepa's
state is only a record: for ``detailed_results`` and W&B.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from gepa.core.callbacks import (
    BudgetUpdatedEvent,
    ParetoFrontUpdatedEvent,
    ValsetEvaluatedEvent,
    notify_callbacks,
)
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
from combee_dspy.search._candidates import Member
from combee_dspy.settings import Settings

__all__ = ["GepaParts"]

_SELECTORS: Mapping[str, Callable[[random.Random], CandidateSelector]] = {
    "pareto": lambda rng: ParetoCandidateSelector(rng=rng),
    "current_best": lambda _: CurrentBestCandidateSelector(),
    "epsilon_greedy": lambda rng: EpsilonGreedyCandidateSelector(epsilon=0.1, rng=rng),
    "top_k_pareto": lambda rng: TopKParetoCandidateSelector(k=5, rng=rng),
}


class GepaParts:
    """gepa's state of one run, and the user's parts that read it. Lives on the search's loop.

    Args:
        settings: What the user passed.
        size: Validation rows.
        most: Rollouts that the run may take, for callbacks that hear of its budget.

    Attributes:
        selector: Draws parents.
        stoppers: The user's, and the file ``gepa.stop`` in ``log_dir``.
        listens: Whether the user passed callbacks.
        experiment: gepa's way to W&B, where that was asked for.
        notes: gepa's note of each iteration under way, by update. They stand in its
            ``full_program_trace``.
    """

    def __init__(self, settings: Settings, *, size: int, most: int | None) -> None:
        chosen = settings.candidate_selection_strategy
        rng = random.Random(settings.seed)  # noqa: S311 - gepa's own stream, by its own seed
        self.selector = _SELECTORS[chosen](rng) if isinstance(chosen, str) else chosen
        self.stoppers: tuple[StopperProtocol, ...] = settings.gepa.stop_callbacks
        if settings.log_dir is not None:
            self.stoppers += (FileStopper(os.path.join(settings.log_dir, "gepa.stop")),)  # noqa: PTH118 - gepa takes a text
        self.callbacks = settings.gepa.callbacks
        self.listens = bool(self.callbacks)
        self.experiment = create_experiment_tracker(
            use_wandb=settings.use_wandb,
            wandb_api_key=settings.wandb_api_key,
            wandb_init_kwargs=settings.wandb_init_kwargs,
        )
        self.log_dir = settings.log_dir
        self.notes: dict[int, dict[str, Any]] = {}
        self._settings = settings
        self._size = size
        self._most = most
        self._policy = FullEvaluationPolicy()
        self._state: GEPAState | None = None

    @property
    def state(self) -> GEPAState:
        """Gepa's state; there is one once the student has joined."""
        if self._state is None:
            raise RuntimeError("gepa's state was asked for before the student was validated")
        return self._state

    def notify(self, method: str, event: Mapping[str, object]) -> None:
        """Tell the user's callbacks; gepa logs what they raise."""
        if self.listens:
            notify_callbacks(list(self.callbacks), method, event)

    def begin(self, step: int) -> None:
        """Begin the iteration of an update."""
        self.state.i += 1
        self.notes[step] = {"i": self.state.i}
        self.state.full_program_trace.append(self.notes[step])

    def end(self, step: int) -> int:
        """End the iteration of an update; return its number."""
        number = self.iteration(step)
        del self.notes[step]
        return number

    def iteration(self, step: int) -> int:
        """Return the number of an update's iteration; of the newest one where it has none."""
        note = self.notes.get(step)
        return 1 + (self.state.i if note is None else int(note["i"]))

    @property
    def front(self) -> set[int]:
        """Positions of the candidates on gepa's front."""
        return {
            index for front in self.state.get_pareto_front_mapping().values() for index in front
        }

    def join(self, member: Member, rollouts: Mapping[int, Sequence[Rollout]], best: Member) -> None:
        """Take in a validated candidate, and tell of it; the student first."""
        evaluation = ValsetEvaluation(
            outputs_by_val_id={index: output_of(drawn[0]) for index, drawn in rollouts.items()},
            scores_by_val_id=dict(member.scores),
            objective_scores_by_val_id=_objectives(rollouts),
        )
        if member.parents:
            self._extend(member, evaluation)
        else:
            self._state = new_state(
                member.candidate.texts,
                evaluation,
                list(visible(member.candidate.texts)),
                track_best_outputs=self._settings.track_best_outputs,
                frontier_type=self._settings.gepa.frontier_type,
            )
        event = ValsetEvaluatedEvent(
            iteration=self.iteration(member.step),
            candidate_idx=member.index,
            candidate=dict(member.candidate.texts),
            scores_by_val_id=dict(member.scores),
            average_score=self._policy.get_valset_score(member.index, self.state),
            num_examples_evaluated=len(member.scores),
            total_valset_size=self._size,
            parent_ids=list(member.parents),
            is_best_program=best.index == member.index,
            outputs_by_val_id=dict(evaluation.outputs_by_val_id) if member.parents else None,
        )
        self.notify("on_valset_evaluated", event)
        if not member.parents:
            self.state.add_budget_hook(self._budget_moved)
        elif member.scores:
            self._log(member, evaluation, best)

    def _extend(self, member: Member, evaluation: ValsetEvaluation) -> None:
        state, before = self.state, self.front
        discovered = state.total_num_evals
        state.increment_evals(len(member.scores))
        state.num_full_ds_evals += 1
        state.update_state_with_new_program(
            parent_program_idx=list(member.parents),
            new_program=dict(member.candidate.texts),
            valset_evaluation=evaluation,
            run_dir=None,
            num_metric_calls_by_discovery_of_new_program=discovered,
        )
        event = ParetoFrontUpdatedEvent(
            iteration=self.iteration(member.step),
            new_front=sorted(self.front),
            displaced_candidates=sorted(before - self.front),
        )
        self.notify("on_pareto_front_updated", event)
        if (note := self.notes.get(member.step)) is not None:
            note["new_program_idx"] = member.index
            note.setdefault("new_program_indices", []).append(member.index)
            note["evaluated_val_indices"] = sorted(member.scores)

    def _log(self, member: Member, evaluation: ValsetEvaluation, best: Member) -> None:
        """Tell W&B. The journal says better what gepa logs there."""
        log_detailed_metrics_after_discovering_new_program(
            logger=SimpleNamespace(log=lambda _: None),
            gepa_state=self.state,
            new_program_idx=member.index,
            valset_evaluation=evaluation,
            objective_scores=self.state.prog_candidate_objective_scores[member.index],
            experiment_tracker=self.experiment,
            linear_pareto_front_program_idx=best.index,
            valset_size=self._size,
            val_evaluation_policy=self._policy,
        )

    def _budget_moved(self, total: int, more: int) -> None:
        event = BudgetUpdatedEvent(
            iteration=self.state.i + 1,
            metric_calls_used=total,
            metric_calls_delta=more,
            metric_calls_remaining=None if self._most is None else max(0, self._most - total),
        )
        self.notify("on_budget_updated", event)


def _objectives(rollouts: Mapping[int, Sequence[Rollout]]) -> dict[int, dict[str, float]] | None:
    """Return scores by objective and row, where the metric names objectives."""
    every = {
        index: [rollout.objective_scores for rollout in drawn] for index, drawn in rollouts.items()
    }
    if not any(scores for drawn in every.values() for scores in drawn):
        return None
    return {
        index: {
            name: math.fsum(scores.get(name, 0.0) for scores in drawn) / len(drawn)
            for name in dict.fromkeys(name for scores in drawn for name in scores)
        }
        for index, drawn in every.items()
    }
