"""Which training rows were right when they ran last."""

from __future__ import annotations

from dataclasses import dataclass, field

from combee_dspy.evaluation import perfect_score_of
from combee_dspy.search._plans import Learned

__all__ = ["RowScores"]


@dataclass(eq=False)
class RowScores:
    """Which training rows were right, by update, so that nothing depends on speed."""

    perfect_score: float
    _right: list[dict[int, bool]] = field(default_factory=list, init=False)

    def end(self, learned: Learned) -> None:
        """Note the scores of the next update. Recorded rollouts do not count."""
        scores = [rollout.score for rollout in learned.rollouts]
        perfect = perfect_score_of(self.perfect_score, scores)
        rows = zip(learned.plan.rows, scores, strict=True)
        self._right.append({row.index: score >= perfect for row, score in rows if row.index >= 0})

    def are_right(self, last: int, size: int) -> bool:
        """Return whether all of ``size`` rows were right when updates up to ``last`` ran them."""
        latest: dict[int, bool] = {}
        for runs in self._right[: last + 1]:
            latest.update(runs)
        return len(latest) == size and all(latest.values())
