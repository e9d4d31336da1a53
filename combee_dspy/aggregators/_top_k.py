"""Retrieval as the reduce: one call over the few reflections that say most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from combee_dspy.aggregators._base import Aggregator
from combee_dspy.aggregators._choose import MODES, Mode, choose, informativeness
from combee_dspy.aggregators._reading import (
    LEARN,
    Asking,
    call_room,
    check_call_tokens,
    check_least,
    outputs,
    read_level,
)
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.aggregators._vectors import reflection_vectors
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import fit_reflections
from combee_dspy.strategies import StrategyContext

__all__ = ["TopK"]

_MIN_RECORD_TOKENS = 64


class TopK(Aggregator):
    """Shows one call the k most central or most diverse reflections, and leaves the others unread.

    Reflections are compared by hashed character n-grams of what their records
    hold, feedback before outputs and inputs, however long the inputs are. Those
    whose feedback says more are preferred: an error that names the right answer
    or rule before a bare "correct". A score counts only where the record shows
    it. See :mod:`combee_dspy.aggregators._choose` for both choices.

    One call, whatever the number of reflections; what the k do not show cannot be learned.

    Args:
        k: How many reflections the call sees. 10 is the smallest of the prompt
            sizes (10, 20 and 30 documents) of Liu et al. 2023 (arXiv 2307.03172),
            who find that what stands in the middle is used the less the more there is.
        mode: ``"central"``: those that represent all others best; ``"diverse"``: those farthest from each other.
        max_call_tokens: Estimated tokens the call may take, the prompt included. A
            reflection that takes more than an equal share is trimmed, with an event.
        max_lessons: The most lessons the call may return.
    """

    name: ClassVar[str] = "top-k"

    def __init__(
        self, k: int = 10, mode: Mode = "central", max_call_tokens: int = 24_000, max_lessons: int = 32
    ) -> None:
        self.k = k
        self.mode: Mode = mode
        self.max_call_tokens = max_call_tokens
        self.max_lessons = max_lessons

    def validate(self) -> None:
        """Check the parameters, before anything is spent.

        Raises:
            ArgumentValueError: A parameter is out of its range.
        """
        check_least(self, {"k": 1, "max_lessons": 1})
        if self.mode not in MODES:
            raise ArgumentValueError("mode", self.mode, "is unknown", f"Give {' or '.join(MODES)}.")
        check_call_tokens(self.max_call_tokens)
        share = self.max_call_tokens // 2 // self.k
        if share < _MIN_RECORD_TOKENS:
            problem = f"leaves fewer than {_MIN_RECORD_TOKENS} tokens for each in half of a call"
            raise ArgumentValueError("k", self.k, problem, "Lower k or raise max_call_tokens.")

    def aggregate(self, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
        """Return what the chosen reflections teach.

        Raises:
            ArgumentValueError: A parameter of this strategy is out of range.
        """
        self.validate()
        if not reflections:
            return Lessons(context.component)
        told = ScanTeller(context, self.name)
        chosen = self._chosen(reflections)
        share = call_room(self.max_call_tokens, context) // len(chosen)
        items = fit_reflections(chosen, share, context.component, context.emit, context.iteration, max_parts=1)
        told.started(len(reflections), (1,))
        level = read_level(told, [items], Asking(LEARN, self.max_lessons))
        nodes, lessons = outputs([level]), level[0].lessons
        told.finished(nodes, lessons)
        return Lessons(context.component, lessons=lessons, nodes=nodes)

    def _chosen(self, reflections: Sequence[Reflection]) -> list[Reflection]:
        """Return the k reflections in the order of the minibatch."""
        if len(reflections) <= self.k:
            return list(reflections)
        taken = choose(reflection_vectors(reflections), informativeness(reflections), self.k, self.mode)
        return [reflections[position] for position in sorted(taken)]
