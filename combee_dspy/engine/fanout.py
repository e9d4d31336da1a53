"""One parent, one minibatch, one scan: several children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gepa.strategies.component_selector import AllReflectionComponentSelector, RoundRobinReflectionComponentSelector
from gepa.strategies.proposal_sampling import ProposalTask, SingleMutationSampling

from combee_dspy.engine._private import hide_components
from combee_dspy.engine.candidates import Candidate, is_hidden, visible
from combee_dspy.engine.foresight import Coming, Foresight
from combee_dspy.engine.steering import Steering
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["Fanout", "SelectOnce", "TaggedCandidate", "component_selector"]

_SELECTORS: dict[str, Callable[[], Any]] = {
    "round_robin": RoundRobinReflectionComponentSelector,
    "all": AllReflectionComponentSelector,
}


class TaggedCandidate(Candidate):
    """A parent's texts, with the operator that is to make the child.

    gepa copies it into a plain dict before it changes anything.

    Attributes:
        operator: Position of the operator.
        components: What the child is to edit, where that is known before the parent has run.
    """

    def __init__(self, candidate: Candidate, operator: int, components: tuple[str, ...] | None = None) -> None:
        super().__init__(candidate)
        self.operator = operator
        self.components = components


class Fanout:
    """gepa's sampling strategy: every task of the inner one, once per child.

    gepa evaluates equal (parent, minibatch) pairs once, so the children of one
    group share their parent's rollouts.

    Args:
        steering: Says which operators make the children, and when to start over.
        foresight: Told what comes, so that it can be begun early.
        selector: Says early what a child will edit, where it can.
        inner: The strategy that picks parents and minibatches.
        stale: Draws the next iteration's parents and minibatches beside this one's, with this context
            around; ``None`` draws each when its iteration begins.
    """

    def __init__(
        self,
        steering: Steering,
        foresight: Foresight,
        selector: SelectOnce,
        inner: Any | None = None,
        stale: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._steering = steering
        self._foresight = foresight
        self._selector = selector
        self._inner = inner or SingleMutationSampling()
        self._stale = stale

    def sample_tasks(self, state: Any, candidate_selector: Any, batch_sampler: Any, trainset: Any) -> list[Any]:
        """Return the tasks of one iteration."""
        hide_components(state, visible(state.program_candidates[0]))
        restart = self._steering.begin(state)
        iteration = state.i + 1
        ahead = self._foresight.state.drawn_ahead
        # An iteration that gepa spent on a merge leaves what was drawn for it to the next.
        drawn = next((ahead.pop(number) for number in sorted(ahead) if number <= iteration), None)
        self._foresight.state.ahead = 0
        if drawn is None:
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
        if self._stale is None or not self._foresight.affords_another():
            return []
        iteration, before = state.i + 2, self._foresight.state.cursor
        with self._stale():
            tasks = self._inner.sample_tasks(state, candidate_selector, batch_sampler, trainset)
        self._foresight.state.ahead = self._foresight.state.cursor - before
        self._foresight.state.drawn_ahead[iteration] = [(task.parent_idx, list(task.minibatch_ids)) for task in tasks]
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


class SelectOnce:
    """A component selector that answers once per parent and minibatch, where those have several children.

    Without it the children of one group would each move round-robin on, and
    edit different components from one scan.

    Args:
        inner: The selector that chooses. It never sees hidden components.
        operators: How many operators there are; below 2 every task is asked for
            anew, as gepa does.
    """

    def __init__(self, inner: Callable[..., Sequence[str]], operators: int) -> None:
        self._inner = inner
        self._once = operators > 1
        self._last: tuple[object, list[str]] | None = None

    def __call__(
        self, state: Any, trajectories: Any, subsample_scores: Any, candidate_idx: int, candidate: Candidate
    ) -> list[str]:
        """Return the components to update."""
        if isinstance(candidate, TaggedCandidate) and candidate.components is not None:
            return list(candidate.components)
        if self._once and self._last is not None and self._last[0] is trajectories:
            return list(self._last[1])
        shown = {key: candidate[key] for key in visible(candidate)}
        chosen = self._inner(state, trajectories, subsample_scores, candidate_idx, shown)
        names = [name for name in chosen if not is_hidden(name)]
        self._last = (trajectories, names)
        return list(names)

    def foresee(self, state: Any, candidate_idx: int, candidate: Candidate) -> tuple[str, ...] | None:
        """Choose before the parent has run; ``None`` where the selector may want to see its trajectories."""
        if type(self._inner) not in (RoundRobinReflectionComponentSelector, AllReflectionComponentSelector):
            return None
        shown = {key: candidate[key] for key in visible(candidate)}
        return tuple(name for name in self._inner(state, [], [], candidate_idx, shown) if not is_hidden(name))

    def only(self, candidate: Candidate) -> tuple[str, ...] | None:
        """Return what every choice would be; ``None`` where there is a choice. Changes nothing."""
        names = tuple(visible(candidate))
        every = len(names) == 1 or type(self._inner) is AllReflectionComponentSelector
        known = type(self._inner) in (RoundRobinReflectionComponentSelector, AllReflectionComponentSelector)
        return names if known and every else None


def component_selector(value: object) -> Callable[..., Sequence[str]]:
    """Return the component selector that a user meant.

    Raises:
        ArgumentValueError: It is an unknown name.
    """
    if isinstance(value, str):
        if value not in _SELECTORS:
            remedy = f"Give one of {', '.join(sorted(_SELECTORS))}, or a gepa component selector."
            raise ArgumentValueError("component_selector", value, "names no component selector", remedy)
        made: Callable[..., Sequence[str]] = _SELECTORS[value]()
        return made
    return value  # type: ignore[return-value]  # gepa's protocol: any callable
