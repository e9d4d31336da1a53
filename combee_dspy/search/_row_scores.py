"""Which training rows were right when they ran last, by update: nothing hangs on speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from combee_dspy.evaluation import perfect_score_of
from combee_dspy.search._candidates import Row
from combee_dspy.search._update import Learned

__all__ = ["RowScores"]

# Times that a row which fails is preferred: what so many readings did not teach, the next will not.
_READINGS = 3


@dataclass(eq=False)
class RowScores:
    """Which training rows were right, by what each update ran. Called in the order of updates."""

    perfect_score: float
    _drawn: list[tuple[int, ...]] = field(default_factory=list, init=False)
    _right: list[dict[int, bool]] = field(default_factory=list, init=False)

    def begin(self, rows: Sequence[Row]) -> None:
        """Note which rows the next update runs. Anchors, which every update runs, do not count."""
        self._drawn.append(tuple(row.index for row in rows if row.index >= 0))

    def end(self, learned: Learned) -> None:
        """Note how they went."""
        scores = [rollout.score for rollout in learned.rollouts]
        perfect = perfect_score_of(self.perfect_score, scores)
        rows = zip(learned.plan.rows, scores, strict=True)
        self._right.append({row.index: score >= perfect for row, score in rows if row.index >= 0})

    def failing(self, last: int) -> list[int]:
        """Return the rows that failed when updates up to ``last`` ran them last, the least read first.

        Rows that a later update runs are left out, since it will tell. So are those that were read
        often enough.
        """
        runs = self._right[: last + 1]
        readings = Counter(row for ran in runs for row, right in ran.items() if not right)
        under_way = {row for drawn in self._drawn[last + 1 :] for row in drawn}
        failing = [
            row
            for row, right in self._latest(last).items()
            if not right and row not in under_way and readings[row] <= _READINGS
        ]
        return sorted(failing, key=lambda row: readings[row])

    def are_right(self, last: int, size: int) -> bool:
        """Return whether all of so many rows were right when updates up to ``last`` ran them."""
        latest = self._latest(last)
        return len(latest) == size and all(latest.values())

    def _latest(self, last: int) -> dict[int, bool]:
        latest: dict[int, bool] = {}
        for runs in self._right[: last + 1]:
            latest.update(runs)
        return latest
