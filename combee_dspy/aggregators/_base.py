"""The aggregator contract: many reflections in, lessons out, at once or as they come."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import Strategy, StrategyContext

__all__ = ["Aggregator", "ReadyShard", "Scan"]


@dataclass(frozen=True, slots=True)
class ReadyShard:
    """A shard of a scan whose reflections are all there.

    Attributes:
        position: Its place among the scan's shards, from 0.
        calls: The reflections of each LM call that reads it, in the order in which the
            call sees them. One call, or several where they do not fit one together.
    """

    position: int
    calls: tuple[tuple[Reflection, ...], ...]


class Scan(ABC):
    """A scan that was begun before its reflections were there. Thread-safe.

    What it returns depends on what is fed to each position, never on the order
    in which that happens, nor on which shards were read before :meth:`finish`.
    """

    @abstractmethod
    def feed(self, position: int, reflection: Reflection | None) -> tuple[ReadyShard, ...]:
        """Take one position's reflection; makes no LM call.

        Args:
            position: From 0, below the size that the scan was begun with; each once.
            reflection: ``None`` where the rollout teaches nothing.

        Returns:
            The shards that waited for this position alone and hold something to read.

        Raises:
            ArgumentValueError: There is no such position, it was fed before, or the scan has finished.
        """

    @abstractmethod
    def read(self, shard: ReadyShard) -> None:
        """Read a shard by its LM calls, all of them in flight at once, and keep what they return.

        A shard that another thread is reading or has read is left alone. Where
        the way to the LM raises, the shard counts as unread again.

        Args:
            shard: As :meth:`feed` returned it.
        """

    @abstractmethod
    def finish(self) -> Lessons:
        """Read what has not been read, all of it at once, wait for what is being read, and join.

        Positions that were never fed teach nothing. Not to be called twice.
        """


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

    def begin(self, size: int, context: StrategyContext, *, tokens: int | None = None) -> Scan | None:
        """Begin a scan whose reflections are still to come.

        Feeding every reflection at its position and finishing returns what
        :meth:`aggregate` returns for all of them, where ``tokens`` is ``None``.

        Args:
            size: Positions, at least 0: the rollouts that may teach something.
            context: As for :meth:`aggregate`.
            tokens: Estimated tokens that a reflection is expected to take; shards are then
                made small enough for one call each. ``None``: not known, and a shard that
                turns out too long for a call is read by several.

        Returns:
            The scan, or ``None`` where this aggregator must see all reflections first, as by default.

        Raises:
            ArgumentValueError: ``size`` is negative, or a parameter of this strategy is out of range.
        """
        return None

    def reads(self, size: int) -> int:
        """Return how many shards a scan begun for so many reflections reads: the paper's ⌊√n⌋, unless overridden.

        What a scan that may turn out to be for nothing is counted as before :meth:`begin`,
        without what is offered to it again. Of no account where :meth:`begin` returns none.

        Args:
            size: Reflections, at least 0.
        """
        return math.isqrt(size)
