"""How many shards there are and who is in them, and how a row of texts is cut into calls. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from combee_dspy.aggregators._base import Aggregator, CallCapacity
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.shuffle import Placement, effective_copies, largest_shard, plan_shards
from combee_dspy.strategies import StrategyContext, parameters

CallTokens = Annotated[int, Field(ge=2_000)]
"""Estimated tokens that one call may take: room for a prompt and for data."""


@parameters
class Dealt(Aggregator):
    """An aggregator over shards that are dealt from their number; each of its children says what the parameters are."""

    copies: Annotated[int, Field(ge=1)] = 2
    placement: Placement = "distinct"
    fan_in: Annotated[int, Field(ge=2)] = 16
    max_call_tokens: CallTokens = 24_000
    max_lessons: Annotated[int, Field(ge=1)] = 16
    window: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.placement == "plain" and self.window is not None and self.copies > self.fan_in * self.window:
            problem = f"copies of one reflection do not fit into {self.window} shards of {self.fan_in}"
            raise ArgumentValueError("copies", self.copies, problem, "Give a larger window or fan_in, or window=None.")

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...] | None:
        """Return the positions in each shard (see :func:`combee_dspy.aggregators.shard_count`)."""
        if n == 0:
            return ()
        merged = self.capacity().merge_fan_in
        k = shard_count(n, self.copies, self.fan_in, merged, self.placement, self.window)
        dealt = plan_shards(n, self.copies, k, context.stream("shuffle"), self.placement, self.window)
        # A window rounds, which can leave a shard without reflections: nothing to call.
        return tuple(shard for shard in dealt if shard)

    def capacity(self) -> CallCapacity:
        """Return the limits by which shards are dealt."""
        return CallCapacity(self.max_call_tokens, self.fan_in, None, self.copies)


def shard_count(
    n: int,
    copies: int,
    fan_in: int,
    merge_fan_in: int | None = None,
    placement: Placement = "distinct",
    window: int | None = None,
) -> int:
    """Return how many shards n ≥ 1 reflections are dealt into.

    k = ⌊√n⌋ (Combee §3.1), which makes n < 4 a single call, as long as two levels
    suffice: no shard passes the fan-in, and no merge is given more lists than it
    may take (``None``: code joins any number). Longer batches get more shards rather
    than longer ones, up to the fewest that respect the fan-in. Where ⌊√n⌋ lists would
    need a further level of merges that fewer, longer shards spare, there are fewer:
    the levels are the fewest that both limits allow.
    """

    def fewest(k: int) -> int:
        while largest_shard(n, copies, k, placement, window) > fan_in:
            # More shards may allow more copies, and a window rounds: grow until both agree.
            k = max(k + 1, -(-n * effective_copies(copies, k, placement, window) // fan_in))
        return k

    k = fewest(math.isqrt(n))
    if merge_fan_in is None or k <= merge_fan_in:
        return k
    # With fewer shards than this there would be fewer copies, which is not what is to be spared.
    least, reach = fewest(copies + 1), merge_fan_in
    while reach < least:
        reach *= merge_fan_in
    return fewest(min(k, reach))


def even_runs(sizes: Sequence[int], room: int, most: int | None = None) -> list[tuple[int, int]]:
    """Cut a row into the fewest consecutive runs that fit a call, the longest of them as short as that allows.

    A run takes at most ``room`` of the sizes, estimated tokens, and ``most`` items; an item above the room
    gets a run of its own. Returns first and last + 1 of each run.
    """
    if not sizes:
        return []
    fewest = len(_filled(sizes, room, most))
    low, high = max(-(-sum(sizes) // fewest), *sizes), room
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(sizes, middle, most)) <= fewest else (middle + 1, high)
    return _filled(sizes, high, most)


def _filled(sizes: Sequence[int], room: int, most: int | None) -> list[tuple[int, int]]:
    """Return consecutive runs, each as long as the limits allow."""
    bounds = [(0, 0)]
    taken = 0
    for number, size in enumerate(sizes):
        first = bounds[-1][0]
        if number > first and (taken + size > room or number - first == most):
            bounds.append((number, number))
            first, taken = number, 0
        taken += size
        bounds[-1] = (first, number + 1)
    return bounds
