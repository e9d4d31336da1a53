"""The aggregator contract: many awaitable reflections in, lessons out."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import Strategy, StrategyContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallCapacity:
    """What an aggregator puts into one LM call at most; ``None`` for what is not bounded, or not known.

    Attributes:
        call_tokens: Estimated tokens of a call, the prompt included.
        fan_in: Reflections that a call reads, where shards are dealt by such a limit.
        merge_fan_in: Lists of lessons that a call merges; ``None`` also where code joins them.
        copies: Copies of each reflection, p.
    """

    call_tokens: int | None = None
    fan_in: int | None = None
    merge_fan_in: int | None = None
    copies: int = 1


class Aggregator(Strategy):
    """Turns the reflections on one component into lessons (the scan of Combee §3.1)."""

    kind: ClassVar[str] = "aggregator"

    @abstractmethod
    async def aggregate(self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext) -> Lessons:
        """Return what the reflections teach about ``context.component``.

        The result depends on what the reflections are, never on which came first:
        shards are planned from their number, before any is there. Each shard awaits
        its own members and is read as soon as they are there. An exception in one
        of the awaitables ends the call: it is raised, and what is in flight is cancelled.

        Args:
            reflections: Position i of the minibatch at i; each may be awaited any number of
                times (a task or a future). ``None``: that position teaches nothing. An
                aggregator that needs all of them first begins with :func:`gathered`.
            context: The component, its current text, and the way to the LM.

        Returns:
            The lessons. With no reflections: none, and no LM call. LM calls that
            fail lose their shard's lessons and appear as failed nodes; only when
            every call fails is there nothing to return.
        """

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...] | None:
        """Return the positions of n reflections that each reading call is given, planned before any is there.

        ``None``, as by default: this aggregator decides when it has seen them.
        """
        return None

    def capacity(self) -> CallCapacity:
        """Return what one LM call is given at most; by default its ``max_call_tokens``, where it has any."""
        return CallCapacity(getattr(self, "max_call_tokens", None))


async def gathered(reflections: Iterable[Awaitable[Reflection | None]]) -> list[Reflection]:
    """Return all reflections that teach something, in order, once the last is there; none where no rollout failed."""
    found = [one for one in await arrived(reflections) if one is not None]
    return [] if all(one.perfect for one in found) else found


async def arrived(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of awaitables that belong to others: to be cancelled here does not cancel them."""
    return await asyncio.gather(*map(asyncio.shield, awaitables))


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once and return their results in order; the first exception cancels the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
