"""gepa's callbacks, told on as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from combee_dspy.engine.adapter import CombeeAdapter
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.foresight import Foresight
from combee_dspy.engine.screening import Screening
from combee_dspy.engine.state import RunState
from combee_dspy.events import (
    CandidateAccepted,
    CandidateRejected,
    ErrorRaised,
    Event,
    IterationFinished,
    IterationStarted,
    ValidationFinished,
)

__all__ = ["Listener"]

_MERGED = 2


class Listener:
    """Receives gepa's callbacks, in the thread of its loop.

    Args:
        adapter: Told what the next evaluation is for.
        state: The run's state.
        emit: Where the events go.
        costs: The ledger's totals as plain data.
        foresight: Told which children are gone.
        screening: Told when an iteration begins.
        finished: Told when an iteration is over.
    """

    def __init__(
        self,
        adapter: CombeeAdapter,
        state: RunState,
        emit: Callable[[Event], None],
        costs: Callable[[], Mapping[str, Any]],
        foresight: Foresight,
        screening: Screening | None,
        finished: Callable[[], object] = lambda: None,
    ) -> None:
        self._finished = finished
        self._adapter = adapter
        self._state = state
        self._emit = emit
        self._costs = costs
        self._foresight = foresight
        self._screening = screening
        self._pool: dict[int, str] = {}
        self._started = 0.0
        self._rollouts = 0

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        """An iteration begins."""
        self._state.iteration = event["iteration"]
        # A resumed run hears of its seed alone.
        self._pool = dict(enumerate(map(candidate_id, event["state"].program_candidates)))
        self._started = self._state.clock()
        if self._screening is not None:
            self._screening.begin(event["iteration"])
        self._emit(IterationStarted(iteration=event["iteration"]))

    def on_evaluation_start(self, event: Mapping[str, Any]) -> None:
        """A minibatch is about to be evaluated: by a parent, or by a child that is not in the pool yet."""
        self._adapter.purpose = "child" if event["candidate_idx"] is None else "parent"
        parents = [self._pool.get(index) for index in event.get("parent_ids") or () if index is not None]
        known = tuple(parent for parent in parents if parent is not None)
        # Only gepa's merge has two parents; it is told of before anything is bought for it.
        merges = event["candidate_idx"] is None and len(parents) == len(known) >= _MERGED
        self._adapter.merging = known if merges else ()

    def on_budget_updated(self, event: Mapping[str, Any]) -> None:
        """Note how many rollouts gepa has counted."""
        self._rollouts = event["metric_calls_used"]

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """A candidate has been validated."""
        if event["iteration"] == 0:
            self._rollouts = max(self._rollouts, event["num_examples_evaluated"])
        self._pool[event["candidate_idx"]] = candidate_id(event["candidate"])
        self._state.validate_child(candidate_id(event["candidate"]), event["average_score"])
        self._emit(
            ValidationFinished(
                iteration=event["iteration"],
                index=event["candidate_idx"],
                candidate_id=candidate_id(event["candidate"]),
                texts=dict(event["candidate"]),
                score=event["average_score"],
                best=event["is_best_program"],
                rollouts=self._rollouts,
            )
        )

    def on_candidate_accepted(self, event: Mapping[str, Any]) -> None:
        """A candidate has joined the pool."""
        self._emit(
            CandidateAccepted(
                iteration=event["iteration"],
                index=event["new_candidate_idx"],
                parents=tuple(parent for parent in event["parent_ids"] if parent is not None),
                score=event["new_score"],
            )
        )

    def on_candidate_rejected(self, event: Mapping[str, Any]) -> None:
        """A child was not kept."""
        self._emit(
            CandidateRejected(
                iteration=event["iteration"],
                old_score=event["old_score"],
                new_score=event["new_score"],
                reason=event["reason"],
            )
        )

    def on_error(self, event: Mapping[str, Any]) -> None:
        """An iteration raised."""
        error = event["exception"]
        text = f"{type(error).__name__}: {error}"
        self._emit(
            ErrorRaised(iteration=event["iteration"], where="gepa", error=text, fatal=not event["will_continue"])
        )

    def on_iteration_end(self, event: Mapping[str, Any]) -> None:
        """An iteration is over."""
        self._state.finish_measurement(self._started)
        self._finished()
        self._foresight.finish(event["iteration"], self._state.end_iteration())
        scores = event["state"].program_full_scores_val_set
        self._emit(
            IterationFinished(
                iteration=event["iteration"],
                accepted=event["proposal_accepted"],
                rollouts=event["state"].total_num_evals,
                best_score=max(scores),
                seconds=self._state.clock() - self._started,
                costs=self._costs(),
            )
        )
