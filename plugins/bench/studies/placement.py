"""Where copies of reflections lie: which meet, which lie double, and what level 1 keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

from combee_bench.options import Count, Numbers, Sizes
from combee_bench.overload import LAWS
from combee_dspy.aggregators import shard_count
from combee_dspy.shuffle import Placement, effective_copies, plan_shards
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive


@parameters
class PlacementOptions:
    """Where copies of reflections lie: which meet, which lie double, and what level 1 keeps.

    Args:
        sizes: Reflections, by comma.
        copies: Values of p, by comma.
        placements: distinct or plain, by comma.
        windows: How many shards a copy may travel, by comma; 0 for no bound.
        fan_in: The most reflections one call may take; by default no number bounds it.
        draws: Shuffles of each.
        law: Law of one call, of those that count items.
        seed: Seed of everything random.
    """

    sizes: Sizes = (4, 6, 8, 16, 40, 80, 240)
    copies: Sizes = (1, 2)
    placements: tuple[Literal["distinct", "plain"], ...] = (
        "distinct",
        "plain",
    )
    windows: Numbers = (0, 4)
    fan_in: int | None = None
    draws: Count = 100
    law: Literal["attention", "collapse", "dilution", "unlimited"] = "dilution"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """One way of dealing, means over the draws.

    Attributes:
        reflections: n.
        copies: p as it was asked for.
        effective: p as the shards have it.
        placement: How copies are placed.
        window: How many shards a copy may travel; ``None`` for no bound.
        shards: k.
        longest: Reflections in the longest shard.
        read: Records that all calls read together.
        doubled: Share of reflections with two copies in one shard.
        meet: Share of pairs of reflections that share a shard in one draw.
        ever: Share of pairs that share a shard in any of the draws.
        retained: Share of reflections whose lesson some shard's call takes in, under the law.
    """

    reflections: int
    copies: int
    effective: int
    placement: str
    window: int | None
    shards: int
    longest: int
    read: int
    doubled: float
    meet: float
    ever: float
    retained: float


def run(options: PlacementOptions) -> Iterator[PlacementRow]:
    """Deal every combination; rows come one at a time."""
    for n in options.sizes:
        for copies in options.copies:
            for placement in options.placements:
                for window in options.windows:
                    yield _row(options, n, copies, placement, window or None)


def _row(
    options: PlacementOptions, n: int, copies: int, placement: Placement, window: int | None
) -> PlacementRow:
    k = shard_count(n, copies, options.fan_in, None, placement, window)
    law, pairs = LAWS[options.law], max(n * (n - 1) // 2, 1)
    doubled, meet, retained = [], [], []
    longest, ever = 0, set[tuple[int, int]]()
    for draw in range(options.draws):
        shards = plan_shards(
            n, copies, k, derive(options.seed, "placement", n, draw), placement, window
        )
        doubled.append(
            len({index for shard in shards for index in shard if shard.count(index) > 1}) / n
        )
        met = {pair for shard in shards for pair in combinations(sorted(set(shard)), 2)}
        meet.append(len(met) / pairs)
        ever |= met
        seen = (
            law.attend(shard, options.seed, n, draw, number) for number, shard in enumerate(shards)
        )
        retained.append(len({index for shard in seen for index in shard}) / n)
        longest = max(longest, *map(len, shards))
    effective = effective_copies(copies, k, placement, window)
    means = (fmean(doubled), fmean(meet), len(ever) / pairs, fmean(retained))
    return PlacementRow(n, copies, effective, placement, window, k, longest, n * effective, *means)
