"""Which examples come next: a stream of epochs with random access."""

from __future__ import annotations

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

__all__ = ["EpochStream"]


class EpochStream:
    """The training examples in the order in which they are drawn, epoch after epoch.

    Each epoch is a permutation of all examples, derived from the seed and the
    epoch's number alone. Position ``cursor`` of the stream can be read at any
    time, so a resumed run draws what it would have drawn, whatever sizes came
    before. Safe to share between threads: reads change nothing but a cache.

    Args:
        size: Examples, at least 1.
        seed: The run's seed.

    Raises:
        ArgumentValueError: ``size`` is below 1.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise ArgumentValueError("trainset", size, "has no examples", "Give at least one example.")
        self._size = size
        self._seed = seed
        self._cached: tuple[int, tuple[int, ...]] | None = None

    def draw(self, cursor: int, count: int) -> tuple[tuple[int, ...], int]:
        """Return the next examples.

        A draw never crosses the end of an epoch: it is cut there, so each
        epoch shows every example exactly once.

        Args:
            cursor: Examples drawn before, from 0.
            count: Examples wanted, at least 1.

        Returns:
            Between 1 and ``count`` indices, all different, and the cursor after them.

        Raises:
            ArgumentValueError: ``cursor`` is below 0 or ``count`` below 1.
        """
        if cursor < 0:
            raise ArgumentValueError("cursor", cursor, "is below 0", "Start at 0 and go on from the returned cursor.")
        if count < 1:
            raise ArgumentValueError("count", count, "is below 1", "Draw at least one example.")
        epoch, start = divmod(cursor, self._size)
        drawn = self._order(epoch)[start : start + count]
        return drawn, cursor + len(drawn)

    def _order(self, epoch: int) -> tuple[int, ...]:
        # Read once and replaced whole: another thread sees one epoch or the other, never a mix.
        cached = self._cached
        if cached is None or cached[0] != epoch:
            order = list(range(self._size))
            derive(self._seed, "epoch", epoch).shuffle(order)
            cached = (epoch, tuple(order))
            self._cached = cached
        return cached[1]
