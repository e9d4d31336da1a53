"""How many calls read how many reflections: shards by number, then calls by tokens."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from combee_dspy.aggregators._base import Aggregator
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import estimate_tokens
from combee_dspy.shuffle import Placement, effective_copies, largest_shard, plan_shards
from combee_dspy.strategies import StrategyContext, parameters

# The signature's own text, its output schema and the adapter's frame, rounded up.
_PROMPT_TOKENS = 1_000

CallTokens = Annotated[int, Field(ge=2_000)]
"""Estimated tokens that one call may take: room for a prompt and for data."""


@parameters
class Dealt(Aggregator):
    """An aggregator over shards that are planned from the number of reflections."""

    copies: Annotated[int, Field(ge=1)] = 2
    placement: Placement = "distinct"
    fan_in: Annotated[int, Field(ge=2)] | None = None
    max_call_tokens: CallTokens = 24_000
    window: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.window is None:
            return
        # A call that reads all that a copy may reach would be repeated by the other copies' calls.
        most = max(1, self.window - 1)
        if self.placement == "plain":
            most = self.copies if self.fan_in is None else self.fan_in * self.window
        if self.copies > most:
            problem = f"copies of one reflection do not fit into a window of {self.window} shards"
            remedy = f"Give copies={most}, a larger window, or window=None."
            raise ArgumentValueError("copies", self.copies, problem, remedy)

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...]:
        """Return the positions in each shard (see :func:`combee_dspy.aggregators.shard_count`)."""
        if n == 0:
            return ()
        k = shard_count(n, self.copies, self.fan_in, self.placement, self.window)
        stream = context.stream("shuffle")
        dealt = plan_shards(n, self.copies, k, stream, self.placement, self.window)
        # A window rounds, which can leave a shard without reflections: nothing to call.
        return tuple(shard for shard in dealt if shard)


def shard_count(
    n: int,
    copies: int,
    fan_in: int | None,
    placement: Placement = "distinct",
    window: int | None = None,
) -> int:
    """Return how many shards n ≥ 1 reflections are dealt into.

    k = ⌊√n⌋ (Combee §3.1), which makes n < 4 a single call. Where a shard would pass the fan-in
    there are more shards rather than longer ones: the fewest that respect it.
    """
    k = math.isqrt(n)
    while fan_in is not None and largest_shard(n, copies, k, placement, window) > fan_in:
        # More shards may allow more copies, and a window rounds: grow until both agree.
        k = max(k + 1, -(-n * effective_copies(copies, k, placement, window) // fan_in))
    return k


def data_room(max_call_tokens: int, *others: str) -> int:
    """Return the estimated tokens that data may take in one call, beside other texts."""
    room = max_call_tokens - _PROMPT_TOKENS - sum(map(estimate_tokens, others))
    # Where the other texts fill a call by themselves, there must still be room for some data.
    return max(room, max_call_tokens // 2)


def even_runs(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Cut a row into the fewest consecutive runs that fit a call, as even as possible.

    A run takes at most ``room`` of the sizes, estimated tokens; an item above the room gets a run
    of its own. Returns first and last + 1 of each run.
    """
    if not sizes:
        return []
    fewest = len(_fill(sizes, room))
    least = min(room, max(-(-sum(sizes) // fewest), *sizes))
    limits = range(least, room)
    enough = bisect_left(limits, True, key=lambda limit: len(_fill(sizes, limit)) <= fewest)
    return _fill(sizes, least + enough)


def _fill(sizes: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Return consecutive runs, each as long as the limit allows."""
    runs: list[tuple[int, int]] = []
    first = used = 0
    for number, size in enumerate(sizes):
        if number > first and used + size > limit:
            runs.append((first, number))
            first, used = number, 0
        used += size
    return [*runs, (first, len(sizes))]
