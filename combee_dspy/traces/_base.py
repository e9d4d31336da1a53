"""The source contract: recorded rollouts, one after another, from a place that is remembered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import dspy

from combee_dspy.strategies import Strategy
from combee_dspy.traces._matching import TraceCoverage, measure_coverage
from combee_dspy.traces._records import Trace

__all__ = ["TraceSource"]


class TraceSource(Strategy):
    """Yields recorded rollouts in a stated order. Reading changes nothing at the source."""

    kind: ClassVar[str] = "source"

    @abstractmethod
    def read(self, after: str = "") -> Iterator[Trace]:
        """Yield traces, oldest first where the source knows their times.

        Reading is lazy: 100,000 traces take no more memory than a few. Each call reads anew, so
        several may be under way.

        Args:
            after: The ``cursor`` of a trace: reading goes on behind it. Empty for the beginning.

        Raises:
            TraceFieldError: A record cannot be read as a trace; it shows the record and the field.
            TraceSourceError: The source cannot be read.
            ArgumentValueError: ``after`` is no cursor of this source.
        """

    def coverage(self, program: dspy.Module) -> TraceCoverage:
        """Read all traces, and say what of them a program could learn from."""
        return measure_coverage(self.read(), program)
