"""One parent, one minibatch, one scan: several children."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gepa.strategies.proposal_sampling import ProposalTask, SingleMutationSampling

from combee_dspy.engine._private import hide_components
from combee_dspy.engine.allowance import Allowance
from combee_dspy.engine.candidates import TaggedCandidate, visible
from combee_dspy.engine.forecast import Coming
from combee_dspy.engine.foresight import Foresight
from combee_dspy.engine.selecting import SelectOnce
from combee_dspy.engine.state import RunState
from combee_dspy.engine.steering import Steering

__all__ = ["Fanout"]


class Fanout:
    """gepa's sampling strategy: every task of the inner one, once per child.

    gepa evaluates equal (parent, minibatch) pairs once, so the children of one
    group share their parent's rollouts.

    Args:
        steering: Says which operators make the children, and when to start over.
        foresight: Told what comes, so that it can be begun early.
        selector: Says early what a child will edit, where it can.
        run: The run's state.
        allowance: Says whether there is an iteration to draw for.
        inner: The strategy that picks parents and minibatches.
        stale: Draws the next iteration's parents and minibatches beside this one's, with this context
            around; ``None`` draws each when its iteration begins.
    """

    def __init__(
        self,
        steering: Steering,
        foresight: Foresight,
        selector: SelectOnce,
        run: RunState,
        allowance: Allowance,
        *,
        inner: Any | None = None,
        stale: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._steering = steering
        self._foresight = foresight
        self._selector = selector
        self._run = run
        self._allowance = allowance
        self._inner = inner or SingleMutationSampling()
        self._stale = stale

    def sample_tasks(self, state: Any, candidate_selector: Any, batch_sampler: Any, trainset: Any) -> list[Any]:
        """Return the tasks of one iteration."""
        hide_components(state, visible(state.program_candidates[0]))
        restart = self._steering.begin(state)
        iteration = state.i + 1
        drawn = self._run.take_drawn()
        if not drawn:
            tasks = self._inner.sample_tasks(state, candidate_selector, batch_sampler, trainset)
        else:
            tasks = [
                ProposalTask(parent, state.program_candidates[parent], ids, trainset.fetch(ids))
                for parent, ids in drawn
            ]
        made: list[Any] = []
        coming: list[Coming] = []
        for number, task in enumerate(tasks):
            operators = self._steering.operators(number)
            parent = task.parent_idx if not restart else 0
            candidate = task.parent_candidate if not restart else state.program_candidates[0]
            if not operators:
                made.append(task)
                continue
            components = self._selector.foresee(state, parent, candidate)
            coming.append(Coming(iteration, number, candidate, tuple(task.minibatch), components, tuple(operators)))
            for operator in operators:
                tagged = TaggedCandidate(candidate, operator, components)
                made.append(ProposalTask(parent, tagged, task.minibatch_ids, task.minibatch))
        following = self._draw_ahead(state, candidate_selector, batch_sampler, trainset) if coming else []
        self._foresight.expect(coming, following)
        return made

    def _draw_ahead(self, state: Any, candidate_selector: Any, batch_sampler: Any, trainset: Any) -> list[Coming]:
        """Draw the next iteration's parents and minibatches, where staleness is allowed."""
        if self._stale is None or not self._allowance.affords_another():
            return []
        iteration = state.i + 2
        with self._stale():
            tasks = self._inner.sample_tasks(state, candidate_selector, batch_sampler, trainset)
        self._run.drawn_ahead = [(task.parent_idx, list(task.minibatch_ids)) for task in tasks]
        return [
            Coming(
                iteration,
                number,
                task.parent_candidate,
                tuple(task.minibatch),
                self._selector.only(task.parent_candidate),
            )
            for number, task in enumerate(tasks)
        ]
