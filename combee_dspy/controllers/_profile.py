"""Which batch size to measure next, as a pure function of the sizes taken."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["bottom", "next_size", "other_size", "top"]

# Below a dozen examples an update is often refused on its screen, and an iteration without a validation says nothing
# about those that have one.
_FEW = 12
# Wide enough to tell a service that is full (α = 0, equal epochs) from one that is idle (α = 1, a fifth of the time).
_SPREAD = 5


def top(trainset_size: int, count: int, min_updates: int) -> int:
    """Return the largest size to measure, or 0 where ``count`` sizes do not fit in one epoch.

    With ``count`` sizes of at most N / ``count`` each, their sum fits. A small
    trainset still measures 1, 2, …, ``count``, as long as these fit.

    Args:
        trainset_size: N, examples.
        count: Distinct sizes to measure.
        min_updates: Updates that an epoch should keep.
    """
    if count * (count + 1) // 2 > trainset_size:
        return 0
    return max(count, trainset_size // max(min_updates, count))


def bottom(largest: int, count: int, min_size: int) -> int:
    """Return the smallest size to measure: a dozen, or a fifth of the largest where that is less.

    It is ``min_size`` at least, and less where ``count`` sizes would not fit.

    Args:
        largest: The largest size to measure.
        count: Distinct sizes to measure.
        min_size: Examples of the smallest batch that is planned.
    """
    return max(1, min(max(min_size, min(_FEW, largest // _SPREAD)), largest - count + 1))


def next_size(measured: Collection[int], count: int, smallest: int, largest: int) -> int:
    """Return the next step up a geometric ladder from ``smallest`` to ``largest``.

    Sizes go from small to large, so that the first lessons come soon. The step
    is planned from the largest size measured, so a rung that was cut short
    (by the end of an epoch, by a budget) moves the ones that follow.

    Args:
        measured: Distinct sizes measured so far, fewer than ``count``.
        count: How many are wanted.
        smallest: The first rung.
        largest: The last rung.
    """
    if not measured:
        return smallest
    reached = max(measured)
    missing = count - len(measured)
    if reached >= largest:
        return largest
    step = round(reached * (largest / reached) ** (1 / missing))
    # Room is kept below the top for the rungs that follow, and every rung is a new size.
    return max(reached + 1, min(step, largest - missing + 1))


def other_size(measured: Collection[int], least: int, limit: int) -> int | None:
    """Return the size that is furthest, by ratio, from every size measured.

    Used where the ladder cannot go on because a bound is in the way.

    Args:
        measured: Sizes measured so far.
        least: The smallest that may be returned, at least 1.
        limit: The largest.

    Returns:
        The size, or ``None`` where every size between has been measured.
    """
    taken = sorted(set(measured))
    options = {least, limit}
    for low, high in zip([least, *taken], [*taken, limit], strict=True):
        middle = round((max(low, 1) * max(high, 1)) ** 0.5)
        options |= {low - 1, low + 1, middle, high - 1, high + 1}
    free = sorted(size for size in options if least <= size <= limit and size not in taken)
    if not free:
        return None
    return max(free, key=lambda size: min((max(size / m, m / size) for m in taken), default=size))
