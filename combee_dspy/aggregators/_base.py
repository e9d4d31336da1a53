"""The aggregator contract, and how reflections are dealt into calls."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from combee_dspy.edits import BookEdit
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.shuffle import Placement, effective_copies, largest_shard, plan_shards
from combee_dspy.strategies import Strategy, StrategyContext, parameters

T = TypeVar("T")

# The signature's own text, its output schema and the adapter's frame, rounded up.
_PROMPT_TOKENS = 1_000

CallTokens = Annotated[int, Field(ge=2_000)]
"""Estimated tokens that one call may take: room for a prompt and for data."""


class Aggregator(Strategy):
    """Turns the reflections on one component into lessons, where Combee §3.1 has its scan.

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
                (a task or a future). ``None``: that position teaches nothing. Where all that a call
                would read are ``perfect``, there is nothing to pay for. An aggregator that needs
                all of them first begins with :func:`gathered`, which returns none then.
            context: The component, its current text, and the way to the LM.

        Returns:
            The lessons. With no reflections: none, and no LM call. LM calls that fail lose their
            shard's lessons and appear as failed nodes; only when every call fails is there nothing
            to return.
        """

    async def relate(self, fresh: Sequence[str], context: StrategyContext) -> tuple[BookEdit, ...]:
        """Return edits that relate new lessons to each other and to the rest of ``context.book``.

        The book holds them already. Asked where :meth:`aggregate` saw ``context.related_later``:
        comparisons then run beside the next rollouts, and the text of update i knows those of
        updates up to i − 1 − staleness. By default none: nothing is related.
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


@parameters
class Dealt(Aggregator):
    """An aggregator over shards that are planned from the number of reflections."""

    copies: Annotated[int, Field(ge=1)] = 2
    placement: Placement = "distinct"
    fan_in: Annotated[int, Field(ge=2)] | None = None
    max_call_tokens: CallTokens = 24_000
    window: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        most = None if self.window is None or self.fan_in is None else self.fan_in * self.window
        if self.placement == "plain" and most is not None and self.copies > most:
            problem = (
                f"copies of one reflection do not fit into {self.window} shards of {self.fan_in}"
            )
            raise ArgumentValueError(
                "copies", self.copies, problem, "Give a larger window or fan_in, or window=None."
            )
        reach = self.copies if self.window is None else max(1, self.window - 1)
        if self.placement == "distinct" and self.copies > reach:
            # Where a call read all that a copy may reach, the others would repeat it.
            problem = f"copies of one reflection do not fit into a window of {self.window} shards"
            remedy = f"Give copies={reach}, window={self.copies + 1}, or window=None."
            raise ArgumentValueError("copies", self.copies, problem, remedy)

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...]:
        """Return the positions in each shard (see :func:`combee_dspy.aggregators.shard_count`)."""
        if n == 0:
            return ()
        k = shard_count(n, self.copies, self.fan_in, self.mergeable(), self.placement, self.window)
        dealt = plan_shards(
            n, self.copies, k, context.stream("shuffle"), self.placement, self.window
        )
        # A window rounds, which can leave a shard without reflections: nothing to call.
        return tuple(shard for shard in dealt if shard)

    def mergeable(self) -> int | None:
        """Return how many lists of lessons one call merges; ``None`` for no limit."""
        return None


def shard_count(
    n: int,
    copies: int,
    fan_in: int | None,
    merge_fan_in: int | None = None,
    placement: Placement = "distinct",
    window: int | None = None,
) -> int:
    """Return how many shards n ≥ 1 reflections are dealt into.

    k = ⌊√n⌋ (Combee §3.1), which makes n < 4 a single call, as long as two levels suffice: no shard
    passes the fan-in, and no merge is given more lists than it may take (``None``: no limit on
    either). Longer batches get more shards rather than longer ones, up to the fewest that respect
    the fan-in. Where ⌊√n⌋ lists would need a further level of merges that fewer, longer shards
    spare, there are fewer: the levels are the fewest that both limits allow.
    """

    def fewest(k: int) -> int:
        while fan_in is not None and largest_shard(n, copies, k, placement, window) > fan_in:
            # More shards may allow more copies, and a window rounds: grow until both agree.
            k = max(k + 1, -(-n * effective_copies(copies, k, placement, window) // fan_in))
        return k

    k = fewest(math.isqrt(n))
    if merge_fan_in is None or k <= merge_fan_in:
        return k
    # With fewer shards than this there would be fewer copies, which is not what is to be spared.
    least, reach = fewest(copies + (copies > 1 and placement == "distinct")), merge_fan_in
    while reach < least:
        reach *= merge_fan_in
    return fewest(min(k, reach))


def data_room(max_call_tokens: int, *others: str) -> int:
    """Return the estimated tokens that data may take in one call.

    ``others`` are the texts that stand beside the data.
    """
    # Where what is told fills a call by itself, some data must still stand beside it.
    return max(
        max_call_tokens - _PROMPT_TOKENS - sum(map(estimate_tokens, others)), max_call_tokens // 2
    )


def even_runs(sizes: Sequence[int], room: int, most: int | None = None) -> list[tuple[int, int]]:
    """Cut a row into the fewest consecutive runs that fit a call, as even as possible.

    A run takes at most ``room`` of the sizes, estimated tokens, and ``most`` items; an item above
    the room gets a run of its own. Returns first and last + 1 of each run.
    """
    if not sizes:
        return []
    fewest = len(_filled(sizes, room, most))
    least = min(room, max(-(-sum(sizes) // fewest), *sizes))
    enough = bisect_left(
        range(least, room), True, key=lambda limit: len(_filled(sizes, limit, most)) <= fewest
    )
    return _filled(sizes, least + enough, most)


def _filled(sizes: Sequence[int], room: int, most: int | None) -> list[tuple[int, int]]:
    """Return consecutive runs, each as long as the limits allow."""
    runs: list[tuple[int, int]] = []
    first = used = 0
    for number, size in enumerate(sizes):
        if number > first and (used + size > room or number - first == most):
            runs.append((first, number))
            first, used = number, 0
        used += size
    return [*runs, (first, len(sizes))]
