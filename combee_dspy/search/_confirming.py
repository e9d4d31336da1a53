"""Which rows confirm a change of a text, and whether they speak for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from statistics import fmean

from combee_dspy.evaluation import sign_test
from combee_dspy.lessons import certainty, nearest
from combee_dspy.search._candidates import Candidate, Row, Scores
from combee_dspy.search._showing import Showing
from combee_dspy.search._trials import Trials

__all__ = ["compare", "concerned"]

# Of the rows that do not fail, those nearest to a changed line that confirm the change.
_NEAREST_ROWS = 4
# How likely a change may be no better than none: what a row that is better and none that is worse
# leave.
_CHANCE = 0.25


async def concerned(
    trials: Trials,
    showing: Showing,
    text: Candidate,
    failing: Collection[int] = (),
    lines: Collection[str] = (),
) -> list[Row]:
    """Return the rows that confirm changed lines of a text: all that are shown something else where
    the budget allows it, else those that the changes may concern.

    Those are the rows that fail, and of the others the nearest to each changed line. All of them,
    too, where the rollouts of the others are not at hand, or no lines are named.
    """
    validation = trials.pool.validation
    # A text with new lines is looked up in, which may wait for a service: not on the loop.
    order = await asyncio.to_thread(
        lambda: [index for index in showing.scores if showing.differs(text, index)]
    )
    if trials.left < 2 * trials.pool.size and showing.rollouts and lines:
        texts = [trials.inputs(index) for index in order]
        near = {order[place] for line in lines for place in nearest(line, texts, _NEAREST_ROWS)}
        order = sorted(near.union(failing).intersection(order))
    return [validation[index] for index in order]


def compare(before: Scores, after: Scores, tried: int = 1) -> tuple[int, int, bool]:
    """Return the rows that are better and worse, and whether they speak for a change.

    With w rows better and l worse, P(θ > ½ | Beta(1 + w, 1 + l)) must be as high as a row without a
    loss makes it, ¾; of several tests, each gets its share of the chance that is left.
    """
    rows = sorted(before.keys() & after.keys())
    if not rows:
        return 0, 0, False
    old, new = [before[row] for row in rows], [after[row] for row in rows]
    wins, losses, _ = sign_test(old, new)
    is_clear = certainty(wins, losses) >= 1 - _CHANCE / tried
    return wins, losses, is_clear and fmean(new) > fmean(old)
