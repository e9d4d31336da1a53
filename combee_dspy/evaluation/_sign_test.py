"""Whether paired scores show a child to be worse than its parent."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["sign_test"]


def sign_test(before: Sequence[float], after: Sequence[float]) -> tuple[int, int, float]:
    """Return wins, losses and how likely so many losses are for a child that is as good as its parent.

    The exact one-sided sign test: ties say nothing; among w wins and l losses of a child that is as
    good as its parent, each is a loss with probability 1/2, so p = P(Binomial(w + l, 1/2) ≥ l). It
    assumes nothing about the size of scores, and for right-or-wrong scores it is McNemar's exact test.
    Without a win or a loss p is 1.

    Args:
        before: The parent's scores.
        after: The child's, on the same examples. One that is no number is a loss.
    """
    # Counted in Python's integers: a sum of NumPy's booleans is one of NumPy's, and 2**told would overflow.
    wins = sum(1 for old, new in zip(before, after, strict=True) if new > old)
    losses = sum(1 for old, new in zip(before, after, strict=True) if not new >= old)
    told = wins + losses
    return wins, losses, sum(math.comb(told, count) for count in range(losses, told + 1)) / 2**told
