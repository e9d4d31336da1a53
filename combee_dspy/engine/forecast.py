"""What gepa's loop is going to ask for, as far as it is known before the loop knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import dspy

from combee_dspy.engine.candidates import Candidate
from combee_dspy.engine.minibatches import ControlledSampler
from combee_dspy.engine.selecting import SelectOnce
from combee_dspy.engine.state import RunState

__all__ = ["Coming", "Forecast"]


@dataclass(frozen=True, slots=True)
class Coming:
    """A parent and a minibatch that gepa's loop is about to ask for.

    Attributes:
        iteration: The iteration that asks.
        number: Position of the minibatch in it.
        candidate: The parent.
        rows: The minibatch.
        components: What its children will edit, where that is known.
        operators: Who makes them, by position; ``None`` where that is not known yet.
    """

    iteration: int
    number: int
    candidate: Candidate
    rows: tuple[dspy.Example, ...]
    components: tuple[str, ...] | None
    operators: tuple[int, ...] | None = None


class Forecast:
    """Says which minibatches come; empty where that is not known. Owned by the thread that runs gepa's loop.

    Args:
        sampler: Draws the minibatches.
        selector: Says what a child will edit, where it can.
        state: The run's state.
        seed: The seed candidate.
        train: The training examples, anchors behind them.
        groups: Minibatches in an iteration.
        validation: Validation examples: what gepa will have counted before its first iteration.
        resumes: Whether the run goes on from a checkpoint, which gepa reads only after the seed's validation.
    """

    def __init__(  # noqa: PLR0913 - one wiring point, called once per run
        self,
        sampler: ControlledSampler,
        selector: SelectOnce,
        state: RunState,
        seed: Candidate,
        train: Sequence[dspy.Example],
        *,
        groups: int,
        validation: int,
        resumes: bool,
    ) -> None:
        self._sampler = sampler
        self._selector = selector
        self._state = state
        self._seed = seed
        self._train = train
        self._groups = groups
        self._resumes = resumes
        # gepa has no state yet; what the controller reads of one is known all the same.
        self._start = SimpleNamespace(i=0, total_num_evals=validation)

    def first(self) -> list[Coming]:
        """Return the first iteration's minibatches, before there is a state of gepa's."""
        if self._resumes:
            return []
        return self._coming(1, self._sampler.plan(self._start, 0).size, self._seed)

    def second(self) -> list[Coming]:
        """Return the second one's as they are likely to be, with the seed as parent."""
        if self._resumes:
            return []
        decision = self._sampler.plan(self._start, 0)
        size = self._sampler.second_size(decision, self._groups)
        return [] if size is None else self._coming(2, size, self._seed, after=decision.size)

    def following(self, parent: Candidate) -> list[Coming]:
        """Return what the next iteration that has not been drawn is likely to draw for a parent."""
        size = self._sampler.likely_size()
        iteration = self._state.iteration + 1 + bool(self._state.drawn_ahead)
        return [] if size is None else self._coming(iteration, size, parent)

    def _coming(self, iteration: int, size: int, parent: Candidate, after: int = 0) -> list[Coming]:
        components = self._selector.only(parent)
        return [
            Coming(iteration, number, parent, tuple(self._train[place] for place in places), components)
            for number, places in enumerate(self._sampler.peek(size, self._groups, after))
        ]
