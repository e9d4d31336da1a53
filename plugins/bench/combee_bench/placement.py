"""Where copies of reflections come to lie: which ever meet, which lie double, and what a scan's
first level keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from rich.table import Table

from combee_bench.options import PlacementOptions
from combee_bench.sweep import LAWS
from combee_bench.tables import by_rows
from combee_dspy.aggregators import shard_count
from combee_dspy.shuffle import Placement, effective_copies, plan_shards
from combee_dspy.streams import derive

__all__ = ["PlacementRow", "line", "run", "table"]


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """One way of dealing, means over the draws.

    Attributes:
        reflections: n.
        copies: p as it was asked for.
        made: p as it was made.
        placement: How copies are placed.
        window: How many shards a copy may travel; ``None`` for no bound.
        shards: k.
        longest: Reflections in the longest shard.
        read: Records that all calls read together.
        doubled: Share of reflections with two copies in one shard.
        meet: Share of pairs of reflections that share a shard in one draw.
        ever: Share of pairs that share a shard in any of the draws.
        kept: Share of reflections whose lesson some shard's call takes in, under the law.
    """

    reflections: int
    copies: int
    made: int
    placement: str
    window: int | None
    shards: int
    longest: int
    read: int
    doubled: float
    meet: float
    ever: float
    kept: float


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
    doubled, meet, kept = [], [], []
    longest, ever = 0, set[tuple[int, int]]()
    for draw in range(options.draws):
        shards = plan_shards(
            n, copies, k, derive(options.seed, "placement", n, draw), placement, window
        )
        doubled.append(len({one for shard in shards for one in shard if shard.count(one) > 1}) / n)
        met = {pair for shard in shards for pair in combinations(sorted(set(shard)), 2)}
        meet.append(len(met) / pairs)
        ever |= met
        seen = (
            law.attend(shard, options.seed, n, draw, number) for number, shard in enumerate(shards)
        )
        kept.append(len({one for shard in seen for one in shard}) / n)
        longest = max(longest, *map(len, shards))
    made = effective_copies(copies, k, placement, window)
    means = (fmean(doubled), fmean(meet), len(ever) / pairs, fmean(kept))
    return PlacementRow(n, copies, made, placement, window, k, longest, n * made, *means)


def line(options: PlacementOptions, row: PlacementRow) -> str:
    """Return what is said of one row when it is there."""
    return f"{row.reflections} reflections, p = {row.copies}, {row.placement}: {row.shards} shards"


def table(options: PlacementOptions, rows: Sequence[PlacementRow]) -> Table:
    """Return one line per way of dealing."""
    heads = (
        "n,p,<placement,window,shards,longest,records read,both copies together,pairs that"
        " meet,pairs that ever meet"
    )
    kept = f"kept by level 1 ({options.law})"
    shown = [
        (
            *(
                str(row.reflections),
                f"{row.made} of {row.copies}",
                row.placement,
                str(row.window or "none"),
            ),
            *(str(row.shards), str(row.longest), str(row.read)),
            *(f"{share:.3f}" for share in (row.doubled, row.meet, row.ever, row.kept)),
        )
        for row in rows
    ]
    notes = ["No language model is involved: what level 1 keeps follows from an assumed law."]
    return by_rows(f"{options.draws} draws each", [*heads.split(","), kept], shown, notes)
