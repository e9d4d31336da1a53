"""What calls keep by how much they read, and whether the calls of a cell go wrong together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from combee_bench.retention import RetentionRow
from combee_dspy.streams import derive

__all__ = ["alikeness", "tables"]

_SIZES = ((4, 8), (10, 14), (15, 27))
_SHUFFLES = 2_000


def alikeness(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return how alike the values of a group are, and how often chance makes them as alike.

    The first is the intraclass correlation of a one-way analysis of variance: 0 where a group says
    nothing of its values, 1 where it says all. The second is the share of all ways to deal the
    values to groups of these sizes, of 2,000 drawn, in which means of groups differ as much.
    """
    values = [value for group in groups for value in group]
    spread = _between(groups)
    between = spread / (len(groups) - 1)
    within = sum((value - fmean(group)) ** 2 for group in groups for value in group)
    within /= len(values) - len(groups)
    others = len(values) / len(groups) - 1
    stream = derive(0, "alikeness")
    as_much = 0
    for _ in range(_SHUFFLES):
        stream.shuffle(values)
        deck = iter(values)
        dealt = [[next(deck) for _ in group] for group in groups]
        as_much += _between(dealt) >= spread - 1e-12
    whole = between + others * within
    return (between - within) / whole if whole else math.nan, as_much / _SHUFFLES


def _between(groups: Sequence[Sequence[float]]) -> float:
    mean = fmean(value for group in groups for value in group)
    return sum(len(group) * (fmean(group) - mean) ** 2 for group in groups)


def tables(rows: Sequence[RetentionRow], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the tables in Markdown."""
    heads = " | ".join(f"`{name}`" for name in names)
    yield f"| facts that a call reads | {heads} |"
    yield f"| --- |{' --- |' * len(names)}"
    for low, high in _SIZES:
        cells = " | ".join(_kept(rows, name, low, high) for name in names)
        yield f"| {low} to {high} | {cells} |"
    yield ""
    yield f"| facts | {heads} |"
    yield f"| ---: |{' --- |' * len(names)}"
    for size in sorted({row.reflections for row in rows}):
        cells = " | ".join(_alike(rows, name, size) for name in names)
        yield f"| {size} | {cells} |"


def _kept(rows: Sequence[RetentionRow], name: str, low: int, high: int) -> str:
    own = (row for row in rows if row.aggregator == name)
    reads = [(items, kept) for row in own for items, kept in row.reads if low <= items <= high]
    if not reads:
        return ""
    return f"{sum(kept for _, kept in reads) / sum(items for items, _ in reads):.2f} ({len(reads)})"


def _alike(rows: Sequence[RetentionRow], name: str, size: int) -> str:
    own = (row for row in rows if (row.aggregator, row.reflections) == (name, size))
    shares = [[kept / items for items, kept in row.reads] for row in own]
    if len(shares) < 2:
        return ""
    alike, chance = alikeness(shares)
    return f"{alike:+.2f} (p {chance:.2f})"
