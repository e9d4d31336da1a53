"""Which child is validated, which candidate is returned, and what speaks for a line. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from statistics import fmean

from combee_dspy.evaluation import sign_test
from combee_dspy.lessons import certainty
from combee_dspy.search._candidates import LEAST_VALIDATIONS, Member, Scores, paired

# A child is refused up to this p of the sign test: with 8 examples 2 losses alone, or 4 and one
# win.
_WORSE = 0.25
_DIGITS = 9  # sums of the same scores in another order differ by less


def draw_screen(size: int, screen: int, stream: random.Random) -> tuple[int, ...]:
    """Return which positions of a minibatch a child runs on, ascending.

    They are all of a minibatch that is no larger than a screen.
    """
    if size <= screen:
        return tuple(range(size))
    return tuple(sorted(stream.sample(range(size), screen)))


def passes_screen(
    before: Sequence[float], after: Sequence[float], *, whole: bool
) -> tuple[bool, str]:
    """Return whether a child may go on, by its scores after its parent's, and why.

    A child that ran on its whole minibatch must beat its parent on it, as in GEPA: there the
    minibatch is small beside the validation that would follow. One that ran on a part of a larger
    minibatch is refused only where that part shows it to be worse, by an exact one-sided sign test
    with p ≤ 0.25. Validation decides what is better: a few examples that asked for an improvement
    would refuse half of the children that are one.
    """
    if whole:
        better = sum(after) > sum(before)
        compared = "is above" if better else "is not above"
        return (
            better,
            f"the minibatch's score {sum(after):g} {compared} its parent's, {sum(before):g}",
        )
    wins, losses, chance = sign_test(before, after)
    counts = (
        f"{wins} wins and {losses} losses against its parent, p = {chance:.3g} by a one-sided sign"
        " test"
    )
    if chance <= _WORSE:
        return False, f"it is worse: {counts}, at or below {_WORSE}"
    return True, f"not shown to be worse: {counts}"


def choose_best(members: Sequence[Member]) -> tuple[Member, str]:
    """Return the best on validation, of equals the newest, and why.

    The student where validation does not speak for the best.
    """
    best = min(members, key=_rank)
    return _or_student(best, members[0], f"best of {len(members)} on validation, {best.mean:.4g}")


def choose_version(members: Sequence[Member]) -> tuple[Member, str]:
    """Return the version of a growing text that validation speaks for, and why.

    The best, of equals the newest. A last version whose validation a budget cut is compared with it
    on the rows that it ran on.
    """
    student, newest, rows = members[0], members[-1], len(members[0].scores)
    best, reason = choose_best([each for each in members if len(each.scores) == rows])
    before, after = paired(best.scores, newest.scores)
    if len(before) == rows or not before or fmean(after) < fmean(before):
        return best, reason
    cut = (
        f"the newest text, {newest.mean:.4g} on validation, which the budget cut at {len(before)}"
        f" of {rows} rows"
    )
    member, cut = _or_student(newest, student, cut)
    return (best, reason) if member is student else (newest, cut)


def _or_student(child: Member, student: Member, reason: str) -> tuple[Member, str]:
    """Return a child where validation speaks for it, else the student, and why.

    With w rows that the child does better and l that it does worse, the posterior that it is
    better, for Beta(1 + w, 1 + l), passes ½ where w > l; its mean must be higher as well, for
    graded scores. Held-out rows never choose: they would no longer be held out.
    """
    before, after = paired(student.scores, child.scores)
    if child.index == student.index or not before:
        return child, reason
    wins, losses, _ = sign_test(before, after)
    if wins > losses and fmean(after) > fmean(before):
        return child, reason
    counts = (
        f"of {len(before)} validation rows the best child does {wins} better and {losses} worse"
    )
    return student, f"the student: {counts}"


def _rank(member: Member) -> tuple[float, int]:
    mean = -math.inf if math.isnan(member.mean) else round(member.mean, _DIGITS)
    return -mean, -member.index


# Validations that the tests may take where the budget has room for 16. Where it has room for 6, one
# validation and rollouts to search failing rows, at most a quarter of the budget. Where it has room
# for LEAST_VALIDATIONS, one validation: of the last text, which holds all that was learned.
_VALIDATIONS, _LARGE_BUDGET = 4, 16
_SMALL_BUDGET, _SEARCHED, _SHARE = 6, 32, 4
# How likely a change may be no better than none: as likely as after one row better and none worse.
_CHANCE = 0.25


def spare(limit: int | None, validation: int, draws: int = 1, *, judged: bool) -> int:
    """Return the rollouts that a run sets aside to test its lines; 0 where it has none to spare.

    Args:
        limit: The budget in rollouts.
        validation: Rollouts that one validation takes.
        draws: Rollouts of each row in it.
        judged: Whether reflections judge the lines already: a small budget then buys rows to learn
            from.
    """
    if limit is None or limit < LEAST_VALIDATIONS * validation:
        return 0
    if limit < _SMALL_BUDGET * validation:
        return validation
    if is_large(limit, validation):
        return _VALIDATIONS * validation
    return validation if judged else min(validation + _SEARCHED * draws, limit // _SHARE)


def is_large(limit: int | None, validation: int) -> bool:
    """Return whether a budget in rollouts has room for many validations."""
    return limit is None or limit >= _LARGE_BUDGET * validation


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
