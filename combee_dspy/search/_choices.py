"""Which child goes on to its validation, and which candidate is returned."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from combee_dspy.evaluation import select_newest_not_clearly_worse, sign_test
from combee_dspy.events import CandidateSelected
from combee_dspy.search._candidates import Member
from combee_dspy.search._effects import Effects

__all__ = [
    "REACH",
    "Verdict",
    "choose_best",
    "choose_version",
    "draw_screen",
    "newest_not_worse",
    "verdict",
]

# the sign test's p up to which a child is refused: with 8 examples 2 losses alone, or 4 with one
# win
_WORSE = 0.25
REACH = 0.25  # the one above which a candidate may well be as good as the best
_DIGITS = 9  # sums of the same scores in another order differ by less


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a child goes on to its validation, why, and its and its parent's mean on the
    screen.
    """

    accepted: bool
    reason: str
    score: float
    parent_score: float


def draw_screen(size: int, screen: int, stream: random.Random) -> tuple[int, ...]:
    """Return which positions of a minibatch a child runs on, ascending; all of a minibatch no
    larger than a screen.
    """
    if size <= screen:
        return tuple(range(size))
    return tuple(sorted(stream.sample(range(size), screen)))


def verdict(before: Sequence[float], after: Sequence[float], *, whole: bool) -> Verdict:
    """Return whether a child may go on.

    A child that ran on its whole minibatch must beat its parent on it, as in GEPA:
    there the minibatch is small beside the validation that would follow. One that
    ran on a part of a larger minibatch is refused only where the part shows it to be
    worse, by an exact one-sided sign test with p ≤ 0.25: validation decides what is
    better, and a few examples that asked for an improvement would refuse half of
    the children that are. ``whole`` says which of the two it was.
    """
    if whole:
        better = sum(after) > sum(before)
        compared = "is above" if better else "is not above"
        reason = f"the minibatch's score {sum(after):g} {compared} its parent's, {sum(before):g}"
        return Verdict(better, reason, fmean(after), fmean(before))
    wins, losses, chance = sign_test(before, after)
    counts = (
        f"{wins} wins and {losses} losses against its parent, p = {chance:.3g} by a one-sided sign"
        " test"
    )
    worse = chance <= _WORSE
    reason = (
        f"it is worse: {counts}, at or below {_WORSE}"
        if worse
        else f"not shown to be worse: {counts}"
    )
    return Verdict(not worse, reason, fmean(after), fmean(before))


def _chosen(effects: Effects, member: Member, reason: str) -> Member:
    effects.log.emit(CandidateSelected(member.candidate.id, member.index, reason))
    return member


def _or_student(child: Member, student: Member, reason: str) -> tuple[Member, str]:
    """Return a child where validation speaks for it, else the student, and why.

    With w rows that the child does better and l that it does worse, the posterior that it is
    better, for Beta(1 + w, 1 + l), passes ½ where w > l; its mean must be higher as well, for
    graded scores. Held-out rows never choose: they would no longer be held out.
    """
    rows = sorted(child.scores.keys() & student.scores.keys())
    if child.index == student.index or not rows:
        return child, reason
    before, after = [student.scores[row] for row in rows], [child.scores[row] for row in rows]
    wins, losses, _ = sign_test(before, after)
    if wins > losses and fmean(after) > fmean(before):
        return child, reason
    return (
        student,
        (
            f"the student: of {len(rows)} validation rows the best child does {wins} better and"
            f" {losses} worse"
        ),
    )


def choose_best(members: Sequence[Member], effects: Effects) -> Member:
    """Return the best on validation, of equals the newest; the student where validation does not
    speak for it.
    """
    best = min(members, key=_rank)
    reason = f"best of {len(members)} on validation, {best.mean:.4g}"
    return _chosen(effects, *_or_student(best, members[0], reason))


def choose_version(members: Sequence[Member], effects: Effects) -> Member:
    """Return the version of a growing text that validation speaks for; the student where it speaks
    for none.

    The newest version within reach of the best has learned the most, so it comes first, and then
    the best. The best of several versions is so by chance as well: the level is shared among the
    others.
    """
    newest = newest_not_worse(members, REACH / max(len(members) - 1, 1))
    reason = f"the newest text within reach of the best, {newest.mean:.4g} on validation"
    if len(newest.scores) < len(members[0].scores):
        reason += f", which the budget cut at {len(newest.scores)} of {len(members[0].scores)} rows"
    member, reason = _or_student(newest, members[0], reason)
    if member is not members[0]:
        return _chosen(effects, member, reason)
    rows = members[0].scores.keys()
    return choose_best([member for member in members if member.scores.keys() == rows], effects)


def newest_not_worse(members: Sequence[Member], level: float) -> Member:
    """Return the newest of several versions of one text that is not clearly worse than the best of
    them.

    ``level`` is the sign test's. The rows are those of the first and the newest, whose validation
    a budget may have cut; members that lack any of them are left out. Where the newest is worse,
    the others are compared on all of theirs. Oldest first.
    """
    order = sorted(members[0].scores.keys() & members[-1].scores.keys())
    if not order:
        return members[-1]
    scores = [
        [member.scores[row] for row in order] if member.scores.keys() >= set(order) else None
        for member in members
    ]
    place = select_newest_not_clearly_worse(scores, level)
    if place < len(members) - 1 and len(order) < len(members[0].scores):
        return newest_not_worse(members[:-1], level)
    return members[place]


def _rank(member: Member) -> tuple[float, int]:
    # Of equals the newest, which has learned the most.
    mean = -math.inf if math.isnan(member.mean) else round(member.mean, _DIGITS)
    return -mean, -member.index
