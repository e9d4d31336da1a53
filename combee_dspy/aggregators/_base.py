"""The aggregator contract, and how to wait for many reflections or calls at once."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import ClassVar, TypeVar

from combee_dspy.edits import BookEdit
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import Strategy, StrategyContext

T = TypeVar("T")


class Aggregator(Strategy):
    """Turns the reflections on one component into lessons, in the place of Combee's scan (§3.1).

    Attributes:
        copies: How often each reflection is dealt.
    """

    kind: ClassVar[str] = "aggregator"
    copies: int = 1

    @abstractmethod
    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return what the reflections teach about ``context.component``.

        The result depends on what the reflections are, never on which came first: shards are
        planned from their number, before any is there. Each shard awaits its own members and is
        read as soon as they are there. An exception in one of the awaitables ends the call: it is
        raised, and what is in flight is cancelled.

        Args:
            reflections: Position i of the minibatch at i; each may be awaited any number of times
                (a task or a future). ``None``: that position teaches nothing. A call whose
                reflections are all ``perfect`` need not be made. An aggregator that needs all of
                them first begins with :func:`gathered`, which returns none then.
            context: The component, its current text, and the way to the LM.

        Returns:
            The lessons. With no reflections: none, and no LM call. LM calls that fail lose their
            shard's lessons and appear as failed nodes; only when every call fails is there nothing
            to return.
        """

    async def relate(self, fresh: Sequence[str], context: StrategyContext) -> tuple[BookEdit, ...]:
        """Return edits that relate new lessons to each other and to the rest of ``context.book``.

        The book holds them already. The host calls this where :meth:`aggregate` saw
        ``context.related_later``: all comparisons are asked at once, before the update's text is
        made. By default none.
        """
        return ()

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...] | None:
        """Return the positions of n reflections that each reading call gets.

        They are planned before any reflection is there.

        ``None``, as by default: this aggregator decides when it has seen them.
        """
        return None


async def gathered(reflections: Iterable[Awaitable[Reflection | None]]) -> list[Reflection]:
    """Return all reflections that teach something, in order.

    It waits for the last one. None come back where no rollout failed.
    """
    ready = [reflection for reflection in await arrived(reflections) if reflection is not None]
    return [] if all(reflection.perfect for reflection in ready) else ready


async def arrived(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of awaitables that belong to others.

    Cancelling this call does not cancel them.
    """
    return await asyncio.gather(*map(asyncio.shield, awaitables))


async def together(coroutines: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run coroutines at once and return their results in order.

    The first exception cancels the others.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
