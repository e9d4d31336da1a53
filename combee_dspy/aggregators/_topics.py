"""Groups of similar reflections, of near-equal size. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from combee_dspy.aggregators._vectors import Vectors, similarities

__all__ = ["topic_groups"]


def topic_groups(
    vectors: Vectors, groups: int, stream: random.Random, fits: Callable[[Sequence[int]], bool]
) -> list[tuple[int, ...]]:
    """Divide rows into groups of rows that are alike.

    A group is cut in two between two rows that are far apart, a row drawn and
    the one least like it: the others are ordered by which of them they are
    nearer to, and cut where the sizes are right. Every size is then within 1
    of n / ``groups``, unless ``fits`` asks for more groups.

    Args:
        vectors: One row each, of unit length.
        groups: How many groups are wanted, at least 1.
        stream: Where chance comes from; it alone decides the result.
        fits: Whether rows may be in one group. One row alone always may.

    Returns:
        The groups, every row in exactly one, ascending within each.
    """

    def divided(members: list[int], parts: int) -> list[tuple[int, ...]]:
        if len(members) == 1 or (parts == 1 and fits(members)):
            return [tuple(sorted(members))]
        parts = min(max(parts, 2), len(members))
        first = parts // 2
        ordered = _between_poles(vectors, members, stream)
        cut = len(members) * first // parts
        return divided(ordered[:cut], first) + divided(ordered[cut:], parts - first)

    return divided(list(range(len(vectors))), groups) if len(vectors) else []


def _between_poles(vectors: Vectors, members: list[int], stream: random.Random) -> list[int]:
    one = stream.choice(members)
    own = vectors[members]
    to_one = similarities(own, vectors[[one]])[:, 0]
    other = members[int(to_one.argmin())]
    to_other = similarities(own, vectors[[other]])[:, 0]
    nearness = dict(zip(members, (to_other - to_one).round(5).tolist(), strict=True))
    return sorted(members, key=lambda member: (nearness[member], member))
