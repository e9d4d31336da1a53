"""The choice of the result among validated candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from combee_dspy.aggregators import together
from combee_dspy.evaluation import select_newest_not_clearly_worse, sign_test
from combee_dspy.records import Rollout
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._effects import Effects
from combee_dspy.search._pool import Member, Pool

__all__ = ["Finals", "newest_not_worse"]

_REACH = 0.25  # the sign test's p above which a candidate may well be as good as the best
_DIGITS = 9  # sums of the same scores in another order differ by less


class Finals:
    """Chooses the best on validation, after a further draw of those within its reach where that helps.

    Where the task LM samples, a validation score is one draw, and the best of many is
    partly luck. So the best few are drawn again, as far as the budget allows, but for
    those that trail the best clearly.

    Args:
        count: How many may be drawn again; 1 chooses at once.
        samples: Whether the task LM samples: other answers to the same question.
        effects: The way to the world.
    """

    def __init__(self, count: int, *, samples: bool, effects: Effects) -> None:
        self._count = count
        self._samples = samples
        self._effects = effects

    async def choose(self, pool: Pool) -> Member:
        """Return the chosen candidate, and say why.

        A pool whose members were validated on different rows, or by a policy of the
        user's, is left to that policy.
        """
        best = pool.best
        rows = set(best.scores)
        complete = [one for one in pool.members if set(one.scores) == rows]
        order = sorted(complete, key=_rank)
        if best.index not in {
            one.index for one in complete if round(one.mean, _DIGITS) == round(order[0].mean, _DIGITS)
        }:
            return self._chosen(best, "best by the validation policy")
        leader = order[0]
        within = [leader, *(one for one in order[1 : self._count] if _reaches(one, leader))]
        most = self._effects.purse.room
        affordable = len(within) if most is None else min(len(within), most // max(pool.size, 1))
        final = within[:affordable]
        drawn = await self._drawn(pool, final, sorted(rows)) if self._samples and affordable > 1 else None
        if drawn is None:
            said = f"best of {len(pool.members)} on validation, {leader.mean:.4g}" if rows else "nothing was validated"
            return self._chosen(leader, said)
        means = {
            one.index: (one.mean + fmean(rollout.score for draws in again.values() for rollout in draws)) / 2
            for one, again in zip(final, drawn, strict=True)
        }
        winner = min(final, key=lambda one: (-round(means[one.index], _DIGITS), -one.index))
        return self._chosen(winner, f"best of {len(final)} finalists over two draws, {means[winner.index]:.4g}")

    async def _drawn(
        self, pool: Pool, final: Sequence[Member], rows: Sequence[int]
    ) -> list[dict[int, tuple[Rollout, ...]]] | None:
        """Return another draw of each finalist; ``None`` where a limit on cost or time leaves no room for all."""
        if self._effects.known("finals"):
            return None
        validation = [pool.validation[index] for index in rows]
        try:
            return await together(
                pool.validate(one.candidate, validation, one.step, purpose="final", first=pool.draws) for one in final
            )
        except BudgetReached as reached:
            reason = str(reached)
            await self._effects.decide("finals", lambda: reason)
            return None

    def _chosen(self, member: Member, reason: str) -> Member:
        self._effects.log.emit("selected", {"candidate": member.candidate.id, "index": member.index, "reason": reason})
        return member


def _rank(member: Member) -> tuple[float, int]:
    # Of equals the newest, which has learned the most.
    mean = -math.inf if math.isnan(member.mean) else round(member.mean, _DIGITS)
    return -mean, -member.index


def _reaches(member: Member, leader: Member) -> bool:
    order = sorted(leader.scores)
    _, _, chance = sign_test([leader.scores[i] for i in order], [member.scores[i] for i in order])
    return chance > _REACH


def newest_not_worse(members: Sequence[Member]) -> Member:
    """Return the newest member that is not clearly worse than the best one on validation."""
    order = sorted(members[0].scores)
    if not order:
        return members[-1]
    scores = [[one.scores[row] for row in order] if sorted(one.scores) == order else None for one in members]
    return members[select_newest_not_clearly_worse(scores)]
