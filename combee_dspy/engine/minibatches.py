"""gepa's batch sampler, with the controller's hand on the size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.engine.sampling import EpochStream
from combee_dspy.engine.state import RunState
from combee_dspy.events import BatchPlanned, Event
from combee_dspy.records import BatchDecision, Measurement

__all__ = ["ControlledSampler"]


class ControlledSampler:
    """Draws minibatches whose size the controller plans anew each iteration.

    An epoch shows every example exactly once, whatever the sizes; what is drawn
    is a pure function of the seed and of how much was drawn before, so a resumed
    run goes on where it stopped. gepa calls it from one thread.

    Args:
        controller: Plans the size.
        guesser: Says what is to be expected of it.
        stream: The order of the examples.
        state: The run's state.
        view: Makes the controller's view from gepa's state.
        emit: Hears each decision.
        anchors: Positions of examples that are in every minibatch, behind what was drawn.
    """

    def __init__(
        self,
        controller: BatchController,
        guesser: BatchController,
        stream: EpochStream,
        state: RunState,
        view: Callable[[Any], BatchView],
        emit: Callable[[Event], None],
        anchors: Sequence[int] = (),
    ) -> None:
        self._anchors = tuple(anchors)
        self._controller = controller
        self._guesser = guesser
        self._stream = stream
        self._state = state
        self._view = view
        self._emit = emit
        self._planned: dict[int, BatchDecision] = {}
        self._guessed: dict[int, BatchDecision] = {}
        self._said: set[int] = set()
        self._forward = 0

    def next_minibatch_ids(self, loader: Any, state: Any) -> list[Any]:
        """Return the ids of the next minibatch; within an iteration each call draws further."""
        position = state.i + self._forward
        decision = self.plan(state, position)
        if position not in self._said:
            self._said.add(position)
            self._state.decisions.append(decision)
            self._emit(BatchPlanned(iteration=position + 1, decision=decision))
        positions, self._state.cursor = self._stream.draw(self._state.cursor, decision.size)
        self._state.draw_minibatch(len(positions), ahead=bool(self._forward))
        ids = list(loader.all_ids())
        return [ids[position] for position in self._with_anchors(positions)]

    def plan(self, state: Any, position: int) -> BatchDecision:
        """Return the decision for an iteration, made once.

        Args:
            state: gepa's state, or what stands for it before there is one.
            position: The iteration, from 0.
        """
        if position not in self._planned:
            self._planned = {position: self._controller.plan(replace(self._view(state), iteration=position + 1))}
        return self._planned[position]

    def likely_size(self) -> int | None:
        """Return the size that the next decision is likely to name; ``None`` where it hangs on delays not known yet.

        What is begun on this is paid for, so it must not be a matter of time itself.
        """
        return self._expected(self._state.decisions, self._state.cursor)

    def second_size(self, first: BatchDecision, draws: int) -> int | None:
        """Return the same of the second decision, before the first minibatches are drawn.

        Args:
            first: The first decision.
            draws: Minibatches in an iteration.
        """
        return self._expected([first], first.size * draws)

    def _expected(self, decisions: Sequence[BatchDecision], seen: int) -> int | None:
        last, iteration = decisions[-1], len(decisions) + 1
        if iteration not in self._guessed:
            view = self._view(SimpleNamespace(i=iteration - 1, total_num_evals=self._state.bought))
            # Any delay will do: only a size that no delay decides is taken.
            measured = (*view.measurements, Measurement(last.size, 1.0))
            sizes = tuple(decision.size for decision in decisions)
            view = replace(view, measurements=measured, planned=sizes, seen=seen)
            self._guessed = {iteration: self._guesser.plan(view)}
        decision = self._guessed[iteration]
        if decision.fit is None:
            return decision.size
        return None if last.fit is None else last.size

    def peek(self, size: int, draws: int, after: int = 0) -> list[list[int]]:
        """Return the positions of examples that the next draws would show.

        Args:
            size: Examples in a draw.
            draws: How many.
            after: Examples in each of as many draws that come before; 0 for none.
        """
        cursor, shown = self._state.cursor, []
        for _ in range(draws if after else 0):
            _, cursor = self._stream.draw(cursor, after)
        for _ in range(draws):
            positions, cursor = self._stream.draw(cursor, size)
            shown.append(self._with_anchors(positions))
        return shown

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Draw for the iteration after gepa's own, for the duration of a ``with`` block."""
        self._forward = 1
        try:
            yield
        finally:
            self._forward = 0

    def _with_anchors(self, positions: Sequence[int]) -> list[int]:
        drawn = set(positions)
        return [*positions, *(one for one in self._anchors if one not in drawn)]
