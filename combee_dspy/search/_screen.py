"""A child on a few of its parent's examples, before its validation is paid for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from combee_dspy.evaluation import sign_test

__all__ = ["Verdict", "draw_screen", "verdict"]

# With 8 examples: 2 losses without a win, or 4 with one, are refused.
_REFUSED_AT = 0.25


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a screen says of a child.

    Attributes:
        accepted: Whether it goes on to its validation.
        reason: Why, in one sentence.
        score: Its mean score.
        parent_score: Its parent's, on the same examples.
    """

    accepted: bool
    reason: str
    score: float
    parent_score: float


def draw_screen(size: int, screen: int, anchored: Sequence[int], stream: random.Random) -> tuple[int, ...]:
    """Return which positions of a minibatch a child runs on, ascending; all of a minibatch no larger than a screen.

    Args:
        size: Rows of the minibatch.
        screen: Rows of a screen.
        anchored: Positions that are always among them.
        stream: Draws the others.
    """
    if size <= screen:
        return tuple(range(size))
    return tuple(sorted({*stream.sample(range(size), screen), *anchored}))


def verdict(before: Sequence[float], after: Sequence[float], *, whole: bool) -> Verdict:
    """Return whether a child may go on.

    A child that ran on its whole minibatch must beat its parent on it, as in GEPA:
    there the minibatch is small beside the validation that would follow. One that
    ran on a part of a larger minibatch is refused only where the part shows it to be
    worse, by an exact one-sided sign test with p ≤ 0.25: validation decides what is
    better, and a few examples that asked for an improvement would refuse half of
    the children that are.

    Args:
        before: The parent's scores.
        after: The child's, on the same examples.
        whole: Whether these are all rows of the minibatch.
    """
    score, parent = fmean(after), fmean(before)
    if whole:
        better = sum(after) > sum(before)
        said = "is above" if better else "is not above"
        return Verdict(
            better, f"the minibatch's score {sum(after):g} {said} its parent's, {sum(before):g}", score, parent
        )
    wins, losses, chance = sign_test(before, after)
    said = f"{wins} wins and {losses} losses against its parent, p = {chance:.3g} by a one-sided sign test"
    if chance <= _REFUSED_AT:
        return Verdict(False, f"it is worse: {said}, at or below {_REFUSED_AT}", score, parent)
    return Verdict(True, f"not shown to be worse: {said}", score, parent)
