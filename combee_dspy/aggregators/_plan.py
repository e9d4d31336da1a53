"""How many shards a scan has, and how a row of texts is cut into calls. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from combee_dspy.shuffle import Placement, effective_copies, largest_shard

__all__ = ["even_runs", "shard_count"]


def shard_count(
    n: int,
    copies: int,
    fan_in: int,
    merge_fan_in: int | None = None,
    placement: Placement = "distinct",
    window: int | None = None,
) -> int:
    """Return how many shards n reflections are dealt into.

    k = ⌊√n⌋ (Combee §3.1), which makes n < 4 a single call, as long as two levels
    suffice: no shard passes the fan-in, and no merge is given more lists than it
    may take. Longer batches get more shards rather than longer ones, up to the
    fewest that respect the fan-in. Where ⌊√n⌋ lists would need a further level of
    merges that fewer, longer shards spare, there are fewer: the levels are the
    fewest that both limits allow.

    Args:
        n: Reflections, at least 1.
        copies: Copies of each, at least 1.
        fan_in: The most reflections one call may take, at least 2.
        merge_fan_in: The most lists that one call may merge, at least 2; ``None`` where code joins them.
        placement: How copies are placed (see :mod:`combee_dspy.shuffle`).
        window: How many shards a copy may travel.
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

    Args:
        sizes: Estimated tokens of each item. One above ``room`` gets a run of its own.
        room: Estimated tokens that one run may take.
        most: Items that one run may take; ``None`` for any number.

    Returns:
        First and last + 1 of each run; nothing where there are no items.
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
