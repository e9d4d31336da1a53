"""The tree behind a scan's nodes, read from their sources."""

from __future__ import annotations

from collections.abc import Sequence

from combee_dspy.records import NodeOutput

__all__ = ["children_of", "levels_of"]


def levels_of(nodes: Sequence[NodeOutput]) -> tuple[tuple[NodeOutput, ...], ...]:
    """Return the nodes by level, lowest first, each level in the order of its positions."""
    numbers = sorted({node.level for node in nodes})
    return tuple(
        tuple(sorted((node for node in nodes if node.level == level), key=lambda node: node.node)) for level in numbers
    )


def children_of(lower: Sequence[NodeOutput], upper: Sequence[NodeOutput]) -> tuple[tuple[int, ...], ...]:
    """Return, per node of one level, the positions of the nodes of the level below that it read.

    A node does not name its children. A parent holds every source of its
    child; where several do, which happens when copies overlap, the one is
    taken that consecutive groups of near-equal size would give. A child whose
    sources stand nowhere whole has no parent.
    """
    found: list[list[int]] = [[] for _ in upper]
    sources = [frozenset(node.sources) for node in upper]
    for position, child in enumerate(lower):
        wanted = frozenset(child.sources)
        holders = [number for number, held in enumerate(sources) if wanted <= held]
        if holders:
            expected = ((position + 1) * len(upper) - 1) // len(lower)
            found[min(holders, key=lambda number: (abs(number - expected), number))].append(position)
    return tuple(tuple(positions) for positions in found)
