"""Retrieval as the reduce: one call over the few reflections that say most."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.aggregators._base import Aggregator, CallCapacity, gathered
from combee_dspy.aggregators._choose import Mode, choose, informativeness
from combee_dspy.aggregators._prompts import LearnFromExamples
from combee_dspy.aggregators._scan import CallTokens, Question, Scan
from combee_dspy.aggregators._vectors import reflection_vectors
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext, parameters

__all__ = ["TopK"]

_MIN_RECORD_TOKENS = 64


@parameters
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
            reflection that takes more than an equal share is trimmed, with a warning.
        max_lessons: The most lessons the call may return.
    """

    name: ClassVar[str] = "top-k"

    k: Annotated[int, Field(ge=1)] = 10
    mode: Mode = "central"
    max_call_tokens: CallTokens = 24_000
    max_lessons: Annotated[int, Field(ge=1)] = 32

    def __post_init__(self) -> None:
        if self.max_call_tokens // 2 // self.k < _MIN_RECORD_TOKENS:
            problem = f"leaves fewer than {_MIN_RECORD_TOKENS} tokens for each in half of a call"
            raise ArgumentValueError("k", self.k, problem, "Lower k or raise max_call_tokens.")

    async def aggregate(self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext) -> Lessons:
        """Return what the chosen reflections teach."""
        scan = Scan(context, self.max_call_tokens)
        if chosen := self._chosen(await gathered(reflections)):
            items = scan.fitted(chosen, scan.room // len(chosen), max_parts=1)
            question = Question(LearnFromExamples, "most_lessons", "lessons", self.max_lessons)
            await scan.read_groups([items], question)
        return scan.result()

    def capacity(self) -> CallCapacity:
        """Return the limit on the call."""
        return CallCapacity(self.max_call_tokens)

    def _chosen(self, reflections: Sequence[Reflection]) -> Sequence[Reflection]:
        """Return the k reflections in the order of the minibatch."""
        if len(reflections) <= self.k:
            return reflections
        taken = choose(reflection_vectors(reflections), informativeness(reflections), self.k, self.mode)
        return [reflections[position] for position in sorted(taken)]
