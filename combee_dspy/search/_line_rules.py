"""How many rollouts tests of lines get, and what they must show. Pure."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean

from combee_dspy.evaluation import sign_test
from combee_dspy.lessons import certainty
from combee_dspy.search._candidates import Scores, paired

__all__ = ["compare", "spare"]

# Validations that the tests may take where the budget has room for 16. Where it has room for 6, one
# validation and rollouts to search failing rows, at most a quarter of the budget.
_VALIDATIONS, _LARGE_BUDGET = 4, 16
_SMALL_BUDGET, _SEARCHED, _SHARE = 6, 32, 4
# How likely a change may be no better than none: as likely as after one row better and none worse.
_CHANCE = 0.25


def spare(limit: int | None, validation: int, *, judged: bool) -> int:
    """Return the rollouts that a run sets aside to test its lines; 0 where it has none to spare.

    Args:
        limit: The budget in rollouts.
        validation: Rollouts that one validation takes.
        judged: Whether reflections judge the lines already: a small budget then buys rows to learn
            from.
    """
    if limit is None or limit < _SMALL_BUDGET * validation:
        return 0
    if limit >= _LARGE_BUDGET * validation:
        return _VALIDATIONS * validation
    return validation if judged else min(validation + _SEARCHED, limit // _SHARE)


def compare(
    before: Scores, after: Scores, tests: int = 1, chosen_on: Collection[int | None] = ()
) -> tuple[int, int, bool]:
    """Return how many rows are better and worse, and whether they speak for a change.

    With w rows better and l worse, P(θ > ½ | Beta(1 + w, 1 + l)) must be at least ¾, which one row
    better and none worse make it. Of several tests each gets its share of the ¼ that is left. Rows
    that the change was chosen on make up for no loss elsewhere.
    """
    old, new = paired(before, after)
    if not old:
        return 0, 0, False
    wins, losses, _ = sign_test(old, new)
    others = {row: score for row, score in after.items() if row not in chosen_on}
    more, fewer, _ = sign_test(*paired(before, others))
    is_clear = certainty(wins, losses) >= 1 - _CHANCE / tests
    return wins, losses, is_clear and more >= fewer and fmean(new) > fmean(old)
