"""gepa's batch sampler, with the controller's hand on the size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.engine.sampling import EpochStream
from combee_dspy.engine.state import RunState
from combee_dspy.events import BatchPlanned, Event
from combee_dspy.records import BatchDecision

__all__ = ["ControlledSampler"]


class ControlledSampler:
    """Draws minibatches whose size the controller plans anew each iteration.

    An epoch shows every example exactly once, whatever the sizes; what is drawn
    is a pure function of the seed and of how much was drawn before, so a resumed
    run goes on where it stopped. gepa calls it from one thread.

    Args:
        controller: Plans the size.
        stream: The order of the examples.
        state: The run's state.
        view: Makes the controller's view from gepa's state.
        emit: Hears each decision.
        anchors: Positions of examples that are in every minibatch, behind what was drawn.
    """

    def __init__(
        self,
        controller: BatchController,
        stream: EpochStream,
        state: RunState,
        view: Callable[[Any], BatchView],
        emit: Callable[[Event], None],
        anchors: Sequence[int] = (),
    ) -> None:
        self._anchors = tuple(anchors)
        self._controller = controller
        self._stream = stream
        self._state = state
        self._view = view
        self._emit = emit
        self._planned: tuple[int, BatchDecision] | None = None

    def next_minibatch_ids(self, loader: Any, state: Any) -> list[Any]:
        """Return the ids of the next minibatch; within an iteration each call draws further."""
        first = self._planned is None or self._planned[0] != state.i
        if first:
            decision = self._controller.plan(self._view(state))
            self._planned = (state.i, decision)
            self._state.decisions.append(decision)
            self._emit(BatchPlanned(iteration=state.i + 1, decision=decision))
        assert self._planned is not None  # noqa: S101 - set just above; tells mypy
        positions, self._state.cursor = self._stream.draw(self._state.cursor, self._planned[1].size)
        self._state.start_minibatch(len(positions), first=first)
        ids = list(loader.all_ids())
        drawn = set(positions)
        return [ids[position] for position in (*positions, *(one for one in self._anchors if one not in drawn))]
