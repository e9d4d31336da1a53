"""The plan of a parallel scan (Combee §3.1): a pure, typed tree, made and drawn without an LM."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.shuffle import Placement, effective_copies, largest_shard, plan_shards

__all__ = ["PlanNode", "ScanPlan", "TokenBudget", "merge_levels", "plan_scan", "shard_count"]

_DRAWN = 8


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One node of a scan.

    Attributes:
        sources: At level 1, positions of reflections; above, positions of nodes
            in the level below. In the order in which the call sees them.
    """

    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens the reflections of one call may take.

    Attributes:
        tokens: Estimated tokens of each reflection.
        limit: Tokens that the reflections of one call may take together.
    """

    tokens: tuple[int, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A tree of calls over n reflections.

    Attributes:
        n: Reflections.
        copies: Copies of each that the plan really makes.
        levels: Nodes by level, level 1 first; the last level is one node, the
            root. Empty when there are no reflections.
    """

    n: int
    copies: int
    levels: tuple[tuple[PlanNode, ...], ...]

    @property
    def calls_per_level(self) -> tuple[int, ...]:
        """LM calls at each level. A node above level 1 with a single child needs none."""
        return tuple(
            sum(1 for node in nodes if level == 0 or len(node.sources) > 1) for level, nodes in enumerate(self.levels)
        )

    def below(self, level: int, node: int) -> tuple[int, ...]:
        """Return the reflections below a node, ascending, each once.

        Args:
            level: From 1.
            node: Position in its level, from 0.
        """
        reached = {node}
        for nodes in reversed(self.levels[:level]):
            reached = {source for position in reached for source in nodes[position].sources}
        return tuple(sorted(reached))

    def draw(self) -> str:
        """Return the plan as a few lines of text, the root first."""
        if not self.levels:
            return "0 reflections: no call"
        lines = [f"level {level}: {_row(self.levels[level - 1])}" for level in range(len(self.levels), 0, -1)]
        lines.append(f"{self.n} reflections × {self.copies} {'copy' if self.copies == 1 else 'copies'}")
        return "\n".join(lines)


def _row(nodes: Sequence[PlanNode]) -> str:
    sizes = [len(node.sources) for node in nodes]
    shown = " ".join(f"[{size}]" for size in sizes[:_DRAWN])
    more = f" … {len(sizes) - _DRAWN} more" if len(sizes) > _DRAWN else ""
    return f"{len(sizes)} {'node' if len(sizes) == 1 else 'nodes'}  {shown}{more}"


def plan_scan(  # noqa: PLR0913 - a pure function of all that decides a plan
    n: int,
    copies: int,
    fan_in: int,
    stream: random.Random,
    placement: Placement = "distinct",
    *,
    window: int | None = None,
    merge_fan_in: int | None = None,
    budget: TokenBudget | None = None,
) -> ScanPlan:
    """Plan the scan of n reflections.

    k = ⌊√n⌋ shards and a root over them (§3.1), which makes n < 4 a single call.
    Where ⌈pn/k⌉ reflections would pass the fan-in limit, k grows to the fewest
    shards that respect it. Above them stands a tree of the merges' fan-in F, of
    ⌈log_F(k)⌉ levels, the fewest for k shards.

    With a token budget, shards shrink by one reflection at a time until each
    one's estimated tokens fit. The sums of the shards decide, not the longest
    reflection: one long record does not make every shard small.

    Args:
        n: Reflections, at positions 0 to n − 1.
        copies: Copies of each wanted.
        fan_in: The most reflections one call may take, at least 2.
        stream: Where chance comes from; it alone decides the result.
        placement: How copies are placed (see :mod:`combee_dspy.shuffle`).
        window: How many shards a copy may travel (see :mod:`combee_dspy.shuffle`).
        merge_fan_in: The most lists one call may merge, at least 2; ``None`` for ``fan_in``.
        budget: Token limit of level-1 calls.

    Raises:
        ArgumentValueError: A number is out of range, or one reflection alone passes the token budget.
    """
    merge = fan_in if merge_fan_in is None else merge_fan_in
    for name, limit in (("fan_in", fan_in), ("merge_fan_in", merge)):
        if limit < 2:
            raise ArgumentValueError(name, limit, "is below 2", "A call must merge at least two items.")
    if n < 0:
        raise ArgumentValueError("n", n, "is negative", "Give the number of reflections.")
    if n == 0:
        return ScanPlan(0, 1, ())
    if budget is not None and max(budget.tokens) > budget.limit:
        problem = f"is less than the {max(budget.tokens)} tokens of one reflection"
        raise ArgumentValueError("budget", budget.limit, problem, "Split or trim reflections first.")
    seed = stream.getrandbits(128)
    tried = 0
    for size in range(fan_in, 0, -1):
        k = shard_count(n, copies, size, placement, window)
        if k == tried:
            continue
        tried = k
        dealt = plan_shards(n, copies, k, random.Random(seed), placement, window)  # noqa: S311 - no secret
        # A window rounds, which can leave a shard without reflections: nothing to call.
        shards = [shard for shard in dealt if shard]
        if budget is None or all(sum(budget.tokens[i] for i in shard) <= budget.limit for shard in shards):
            break
    levels = [tuple(PlanNode(shard) for shard in shards), *merge_levels(len(shards), merge)]
    return ScanPlan(n, effective_copies(copies, k, placement, window), tuple(levels))


def shard_count(n: int, copies: int, size: int, placement: Placement, window: int | None) -> int:
    """Return the fewest shards of n ≥ 1 reflections, at least ⌊√n⌋, of at most ``size`` ≥ 1 entries."""
    k = math.isqrt(n)
    while largest_shard(n, copies, k, placement, window) > size:
        # More shards may allow more copies, and a window rounds: grow until both agree.
        k = max(k + 1, -(-n * effective_copies(copies, k, placement, window) // size))
    return k


def merge_levels(width: int, fan_in: int) -> Iterator[tuple[PlanNode, ...]]:
    """Yield the levels above ``width`` nodes: the fewest groups of near-equal size, up to the root.

    Args:
        width: Nodes of the level below. None or one needs no level above it.
        fan_in: The most nodes that one node may read, at least 2.
    """
    while width > 1:
        groups = -(-width // fan_in)
        yield tuple(
            PlanNode(tuple(range(width * group // groups, width * (group + 1) // groups))) for group in range(groups)
        )
        width = groups
