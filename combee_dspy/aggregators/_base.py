"""The aggregator contract: many reflections in, lessons out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import Strategy, StrategyContext

__all__ = ["Aggregator"]


class Aggregator(Strategy):
    """Turns the reflections on one component into lessons (the scan of Combee §3.1)."""

    kind: ClassVar[str] = "aggregator"

    @abstractmethod
    def aggregate(self, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
        """Return what the reflections teach about ``context.component``.

        Args:
            reflections: n ≥ 0 reflections with distinct ``(index, part)``. Not to be changed.
            context: The component, its current text, and the way to the LM.

        Returns:
            The lessons. With no reflections: none, and no LM call. LM calls that
            fail lose their shard's lessons and appear as failed nodes; only when
            every call fails is there nothing to return.
        """
