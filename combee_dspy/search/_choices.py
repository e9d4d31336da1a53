"""Which child goes on to its validation, and which candidate is returned."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from combee_dspy.aggregators import together
from combee_dspy.evaluation import select_newest_not_clearly_worse, sign_test
from combee_dspy.events import CandidateSelected
from combee_dspy.records import Rollout
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Member
from combee_dspy.search._effects import Effects
from combee_dspy.search._pool import Pool

__all__ = [
    "REACH",
    "Finals",
    "Verdict",
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


def draw_screen(
    size: int, screen: int, anchored: Sequence[int], stream: random.Random
) -> tuple[int, ...]:
    """Return which positions of a minibatch a child runs on, ascending; all of a minibatch no
    larger than a screen.

    Those of anchors are always among them; ``stream`` draws the others.
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


@dataclass(frozen=True, slots=True)
class Finals:
    """Chooses the best on validation, of equals the newest, after a further draw of those within
    its reach.

    Where the task LM samples, a validation score is one draw, and the best of many is
    partly luck. So the best few are drawn again, as far as the budget allows, but for
    those that trail the best clearly.
    """

    count: int  # how many may be drawn again; 1 chooses at once
    samples: bool  # whether the task LM gives other answers to the same question
    effects: Effects

    async def choose(self, pool: Pool) -> Member:
        """Return the chosen candidate, with its scores over all draws that decided, and say why."""
        order = sorted(pool.members, key=_rank)
        leader = order[0]
        within = [leader, *(member for member in order[1 : self.count] if _reaches(member, leader))]
        room = self.effects.purse.room
        final = within if room is None else within[: max(room, 0) // max(pool.size, 1)]
        drawn = await self._drawn(pool, final) if self.samples and len(final) > 1 else None
        if drawn is None:
            reason = f"best of {len(pool.members)} on validation, {leader.mean:.4g}"
            return _chosen(self.effects, *_or_student(leader, pool.members[0], reason))
        best = min(drawn, key=_rank)
        reason = f"best of {len(drawn)} finalists over two draws, {best.mean:.4g}"
        student = next((member for member in drawn if member.index == 0), pool.members[0])
        return _chosen(self.effects, *_or_student(best, student, reason))

    async def _drawn(self, pool: Pool, final: Sequence[Member]) -> list[Member] | None:
        """Return finalists with a further draw in their scores; ``None`` where a limit leaves no
        room for all.
        """
        if self.effects.known("finals"):
            return None
        try:
            again = await together(
                pool.validate(
                    member.candidate,
                    pool.validation,
                    member.step,
                    purpose="final",
                    first=pool.draws,
                )
                for member in final
            )
        except BudgetReached as reached:
            reason = str(reached)
            await self.effects.decide("finals", lambda: reason)
            return None
        return [
            replace(
                member,
                scores={
                    row: (member.scores[row] + _mean(drawn)) / 2 for row, drawn in draws.items()
                },
            )
            for member, draws in zip(final, again, strict=True)
        ]


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


def choose_version(members: Sequence[Member], effects: Effects) -> Member:
    """Return the version of a growing text that validation speaks for; the student where it speaks
    for none.

    The newest version within reach of the best has learned the most, so it comes first, and then
    the best. The best of several versions is so by chance as well: the level is shared among the
    others.
    """
    newest = newest_not_worse(members, REACH / max(len(members) - 1, 1))
    best = min(
        (member for member in members if member.scores.keys() == members[0].scores.keys()),
        key=_rank,
        default=newest,
    )
    reason = f"the newest text within reach of the best, {newest.mean:.4g} on validation"
    chosen = _or_student(newest, members[0], reason)
    if chosen[0] is members[0]:
        chosen = _or_student(
            best, members[0], f"best of {len(members)} on validation, {best.mean:.4g}"
        )
    return _chosen(effects, *chosen)


def newest_not_worse(members: Sequence[Member], level: float) -> Member:
    """Return the newest of several versions of one text that is not clearly worse than the best of
    them.

    ``level`` is the sign test's; those validated on other rows than the first are left out. Oldest
    first.
    """
    order = sorted(members[0].scores)
    if not order:
        return members[-1]
    scores = [
        [member.scores[row] for row in order] if sorted(member.scores) == order else None
        for member in members
    ]
    return members[select_newest_not_clearly_worse(scores, level)]


def _mean(drawn: Sequence[Rollout]) -> float:
    return fmean(rollout.score for rollout in drawn)


def _rank(member: Member) -> tuple[float, int]:
    # Of equals the newest, which has learned the most.
    mean = -math.inf if math.isnan(member.mean) else round(member.mean, _DIGITS)
    return -mean, -member.index


def _reaches(member: Member, leader: Member) -> bool:
    order = sorted(leader.scores)
    _, _, chance = sign_test([leader.scores[i] for i in order], [member.scores[i] for i in order])
    return chance > REACH
