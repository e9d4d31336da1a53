"""Which copy of which reflection goes to which shard. Pure: no LM, no clock, no global state."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal

Placement = Literal["distinct", "plain"]
"""``"distinct"``: no two copies of a reflection in one shard. ``"plain"``: shuffle and cut, as in
the paper.
"""


def effective_copies(
    copies: int, shards: int, placement: Placement = "distinct", window: int | None = None
) -> int:
    """Return how many copies of each reflection are worth making.

    A second copy in the same call adds nothing, so with ``"distinct"`` placement p is less than
    the number of shards that a copy may reach: with as many, each call would read everything, and
    be the same call p times. Two shards split what they read.
    """
    if shards == 1:
        return 1
    if placement == "plain":
        return copies
    reach = min(last - first for first, last in _blocks(shards, window))
    return max(1, min(copies, reach - 1))


def plan_shards(
    n: int,
    copies: int,
    shards: int,
    stream: random.Random,
    placement: Placement = "distinct",
    window: int | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Deal the copies of n reflections into shards of near-equal size.

    Every index appears exactly :func:`effective_copies` times. Shard sizes differ by at most 1;
    with a window, by at most 1 within a block and 3 in all. Takes O(n · copies + shards) time.

    Under ``"plain"`` placement with two copies and shards of s entries, a copy shares its shard
    with its twin with probability (s − 1) / (2n − 1).

    Args:
        n: Reflections, numbered from 0.
        copies: Copies of each, p, at least 1.
        shards: Shards, k, at least 1.
        stream: Where chance comes from; it alone decides the result.
        placement: How copies are placed.
        window: How far a copy may travel, in shards, at least 1. Shards are dealt in b = max(1, ⌊k
            / window⌋) blocks of at least ``window`` and fewer than 2 · ``window`` consecutive
            shards, each from consecutive reflections, so a block is ready as soon as its own
            rollouts are. Only reflections of one block can meet in a shard: about 1/b of all pairs.
            ``None``: anywhere, so all pairs can meet.

    Returns:
        The indices in each shard, in the order in which they were dealt.
    """
    p = effective_copies(copies, shards, placement, window)
    deal = _deal_plain if placement == "plain" else _deal_distinct
    planned: list[tuple[int, ...]] = []
    for first, last in _blocks(shards, window):
        members = range(n * first // shards, n * last // shards)
        planned.extend(deal(members, p, last - first, stream))
    return tuple(planned)


def largest_shard(
    n: int, copies: int, shards: int, placement: Placement = "distinct", window: int | None = None
) -> int:
    """Return the size of the largest shard of :func:`plan_shards`, without making it."""
    p = effective_copies(copies, shards, placement, window)
    return max(
        -(-p * (n * last // shards - n * first // shards) // (last - first))
        for first, last in _blocks(shards, window)
    )


def _blocks(shards: int, window: int | None) -> list[tuple[int, int]]:
    """Return the bounds of runs of shards that are dealt together."""
    count = 1 if window is None else max(1, shards // window)
    return [(shards * block // count, shards * (block + 1) // count) for block in range(count)]


def _deal_plain(
    members: Sequence[int], copies: int, shards: int, stream: random.Random
) -> Iterator[tuple[int, ...]]:
    deck = [index for index in members for _ in range(copies)]
    stream.shuffle(deck)
    for shard in range(shards):
        yield tuple(deck[len(deck) * shard // shards : len(deck) * (shard + 1) // shards])


def _deal_distinct(
    members: Sequence[int], copies: int, shards: int, stream: random.Random
) -> Iterator[tuple[int, ...]]:
    """Deal reflections in random order to shards drawn from shuffled decks of all shards.

    A deck gives every shard one entry, so sizes stay within 1. Where one reflection's copies
    straddle two decks, the second deck skips the shards that it already has, so the split is exact
    for every n without retries.
    """
    order = list(members)
    stream.shuffle(order)
    dealt: list[list[int]] = [[] for _ in range(shards)]
    deck: list[int] = []
    for index in order:
        drawn = [deck.pop() for _ in range(min(copies, len(deck)))]
        if len(drawn) < copies:
            deck = list(range(shards))
            stream.shuffle(deck)
            more = [shard for shard in deck if shard not in drawn][: copies - len(drawn)]
            deck = [shard for shard in deck if shard not in more]
            drawn += more
        for shard in drawn:
            dealt[shard].append(index)
    yield from map(tuple, dealt)
