"""The share of what shards hold that at least one of their readers is expected to keep. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence

__all__ = ["expected_share", "margin"]


def expected_share(shards: Sequence[Collection[Hashable]], keep: Callable[[int], float]) -> float:
    """Return the expected share of all things that some reader keeps, where calls are independent.

    A thing is lost where each call that reads it loses it: 1 − Π (1 − q) over its shards. With k
    shards of m = n · p / k, copies in different shards, and a reader that fails whole with
    probability f and else keeps c of m at most, that is 1 − (1 − (1 − f) · min(1, c / m))^p.

    Args:
        shards: What each call reads; the same thing in several shards is a copy.
        keep: The chance that a call over so many different things keeps one of them.

    Example:
        >>> from combee_bench.tuning.kept import expected_share
        >>> expected_share([{1, 2}, {2, 3}], lambda items: 0.5)
        0.5833333333333334
    """
    lost: dict[Hashable, float] = {}
    for shard in map(set, shards):
        for thing in shard:
            lost[thing] = lost.get(thing, 1.0) * (1.0 - keep(len(shard)))
    return 1.0 - sum(lost.values()) / len(lost)


def margin(shards: Sequence[Collection[Hashable]], chance: float = 0.05) -> float:
    """Return how far the share that is kept lies from the expected one, but for a ``chance``.

    McDiarmid's bound: one call moves the share by at most its own part of all things, whatever it
    does with them. With k even shards of two copies it is 2 · √(ln(2 / chance) / 2k).
    """
    things = len(set().union(*shards))
    moved = sum((len(set(shard)) / things) ** 2 for shard in shards)
    return math.sqrt(math.log(2.0 / chance) * moved / 2.0)
