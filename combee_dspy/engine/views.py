"""What the batch controller gets to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from combee_dspy.aggregators import Aggregator, Dealt, ParallelScan
from combee_dspy.checks import Splits
from combee_dspy.controllers import BatchView
from combee_dspy.costs import Ledger
from combee_dspy.engine.state import RunState

__all__ = ["CallLimits", "ViewMaker", "call_limits"]


class CallLimits(NamedTuple):
    """What an aggregator puts into one call, for :class:`combee_dspy.controllers.BatchView`."""

    call_tokens: int | None
    fan_in: int | None
    merge_fan_in: int | None
    copies: int = 2


def call_limits(aggregator: Aggregator) -> CallLimits:
    """Return what an aggregator puts into one call at most; ``None`` for what is not known."""
    tokens = getattr(aggregator, "max_call_tokens", None)
    if not isinstance(aggregator, Dealt):
        # A parameter of that name may mean something else there.
        return CallLimits(tokens, None, None)
    merged = aggregator.lists(aggregator.max_call_tokens) if isinstance(aggregator, ParallelScan) else None
    return CallLimits(tokens, aggregator.fan_in, merged, aggregator.copies)


class ViewMaker:
    """Makes the controller's view at the start of each iteration.

    Args:
        state: The run's state.
        splits: The data.
        ledger: Knows how many calls were in flight at once.
        aggregator: May bound the tokens of a call.
        limit: The budget in rollouts, if any.
    """

    def __init__(
        self, state: RunState, splits: Splits, ledger: Ledger, aggregator: Aggregator, limit: int | None
    ) -> None:
        self._state = state
        self._splits = splits
        self._ledger = ledger
        self._limits = call_limits(aggregator)
        self._limit = limit

    def maker(
        self, slots: Callable[[], int], children: int, groups: int, screen: int | None = None
    ) -> Callable[[Any], BatchView]:
        """Return the function that makes a view from gepa's state.

        Args:
            slots: Returns how many rollouts may run at once now.
            children: Children checked on each minibatch.
            groups: Minibatches drawn in one iteration.
            screen: Examples that a child runs on at most; ``None`` for its whole minibatch.
        """

        def make(state: Any) -> BatchView:
            workers = slots()
            task = self._ledger.snapshot().by_role.get("task")
            # Below the workers the peak says how little was asked at once, not how much the service can
            # do: a first minibatch of three would pass for a service that serves three.
            saturated = task is not None and task.peak >= workers
            spent = state.total_num_evals + self._state.unbilled
            return BatchView(
                iteration=state.i + 1,
                trainset_size=len(self._splits.train),
                seen=self._state.cursor,
                measurements=tuple(self._state.measurements),
                planned=tuple(decision.size for decision in self._state.decisions),
                workers=workers,
                capacity=task.peak if task is not None and saturated else None,
                remaining_rollouts=None if self._limit is None else max(0, self._limit - spent),
                validation_size=len(self._splits.validation),
                children=children,
                groups=groups,
                screen=screen,
                score_variance=self._state.score_variance,
                record_tokens=self._state.mean_record_tokens,
                call_tokens=self._limits.call_tokens,
                fan_in=self._limits.fan_in,
                merge_fan_in=self._limits.merge_fan_in,
                copies=self._limits.copies,
            )

        return make
