"""Which batch size to measure next, as a pure function of the sizes taken."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["bottom", "next_size", "other_size", "top"]

# Below a dozen examples an update is often refused on its screen, and one without a validation says nothing
# about those that have one.
_FEW = 12
# Wide enough to tell a service that is full (α = 0, equal epochs) from one that is idle (α = 1, a fifth of the time).
_SPREAD = 5


def top(trainset_size: int, count: int, min_updates: int) -> int:
    """Return the largest size to measure, or 0 where ``count`` sizes do not fit in one epoch.

    With ``count`` sizes of at most N / ``count`` each, their sum fits. A small
    trainset still measures 1, 2, …, ``count``, as long as these fit.
    """
    if count * (count + 1) // 2 > trainset_size:
        return 0
    return max(count, trainset_size // max(min_updates, count))


def bottom(largest: int, count: int, min_size: int) -> int:
    """Return the smallest size to measure: a dozen, or a fifth of the largest where that is less.

    It is ``min_size`` at least, and less where ``count`` sizes would not fit.
    """
    return max(1, min(max(min_size, min(_FEW, largest // _SPREAD)), largest - count + 1))


def next_size(taken: Collection[int], count: int, smallest: int, largest: int) -> int:
    """Return the next step up a geometric ladder of ``count`` sizes from ``smallest`` to ``largest``.

    Sizes go from small to large, so that the first lessons come soon. The step
    is planned from the largest size taken, so a rung that was cut short
    (by the end of an epoch, by a budget) moves the ones that follow.
    """
    if not taken:
        return smallest
    reached, missing = max(taken), count - len(taken)
    if reached >= largest:
        return largest
    step = round(reached * (largest / reached) ** (1 / missing))
    # Room is kept below the top for the rungs that follow, and every rung is a new size.
    return max(reached + 1, min(step, largest - missing + 1))


def other_size(taken: Collection[int], least: int, limit: int) -> int | None:
    """Return the size from ``least`` to ``limit`` that is furthest, by ratio, from every size taken, if there is one.

    Used where the ladder cannot go on because a bound is in the way.
    """
    free = [size for size in range(least, limit + 1) if size not in taken]
    return max(free, key=lambda size: min((max(size / one, one / size) for one in taken), default=1.0), default=None)
