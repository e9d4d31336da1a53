"""Searches validation rows that a text fails for the lessons that spoil or would mend them.

Lessons arrive in groups, so past rollouts cannot tell which of them harms. A failing row can: a
good line that is left out cannot hide the gain from a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TypeVar

from combee_dspy.aggregators import together
from combee_dspy.lessons import nearest
from combee_dspy.search._candidates import Candidate, Scores
from combee_dspy.search._changes import Change, LessonLines
from combee_dspy.search._trials import Trials, Validated

__all__ = ["RowSearch", "halved"]

T = TypeVar("T")
IsMended = Callable[[Iterable[T]], Coroutine[object, object, bool]]
"""Whether a row is right once all of these change."""

# Lessons of each kind, served and waiting, that are tried on a row that never was right.
_TRIED = 4
# Lessons that may spoil a row together: two wordings of one lesson, or three.
_TOGETHER = 3


async def halved(suspects: Sequence[T], is_mended: IsMended[T]) -> list[T]:
    """Return the few suspects that must change to mend a row, found by halves.

    That takes about 2 · log2 n trials. Two lessons that say the same hide each other: the row stays
    spoilt until both have changed. None are returned where all suspects together do not mend the
    row, or more than three must change.
    """
    if not suspects or not await is_mended(suspects):
        return []
    culprits = await _narrowed(suspects, [], is_mended)
    if len(culprits) == 1:
        return culprits
    return culprits if len(culprits) <= _TOGETHER and await is_mended(culprits) else []


async def _narrowed(suspects: Sequence[T], others: Sequence[T], is_mended: IsMended[T]) -> list[T]:
    """Return the suspects that must change beside others; all of them together mend the row."""
    if len(suspects) < 2:
        return list(suspects)
    first, second = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
    mended = await together(is_mended([*others, *half]) for half in (first, second))
    if any(mended):
        return await _narrowed(first if mended[0] else second, others, is_mended)
    # Neither half is enough: each holds a part.
    part = await _narrowed(second, [*others, *first], is_mended)
    return [*await _narrowed(first, [*others, *part], is_mended), *part]


async def first_of(suspects: Sequence[T], is_mended: IsMended[T]) -> list[T]:
    """Return the first suspect that mends a row alone; a few are tried at once."""
    for start in range(0, len(suspects), _TRIED):
        batch = suspects[start : start + _TRIED]
        mended = await together(is_mended([suspect]) for suspect in batch)
        if any(mended):
            return [batch[mended.index(True)]]
    return []


@dataclass(frozen=True, slots=True)
class RowSearch:
    """Searches rows that a validated text fails for changes of its lessons that mend them.

    Attributes:
        lines: The lessons, as lines of texts.
        tested: The text.
        allows: Whether guards and the budgets of operators let a text take the place of another.
        served: Lessons that may spoil a row.
        waiting: Lessons that a row may lack.
    """

    lines: LessonLines
    tested: Validated
    allows: Callable[[Candidate, Candidate], bool]
    served: Sequence[Change]
    waiting: Sequence[Change] = ()

    async def mend(
        self, trials: Trials, failing: Sequence[int], earlier: Scores, *, reserve: int
    ) -> dict[Change, int]:
        """Return changes that mend failing rows, each with its row.

        Rows that an earlier text had right come first. As many rows are searched at once as there
        are rollouts for, but for a reserve. What one batch finds is tried first in the next.
        """
        lost = {row for row in failing if earlier.get(row, 0.0) > self.tested.scores[row]}
        left = sorted(failing, key=lambda row: (row not in lost, row))
        changes: dict[Change, int] = {}
        while batch := self._affordable(trials, left, lost, reserve):
            results = await together(
                self.search(own, row, list(changes), is_lost=row in lost)
                for row, own in batch.items()
            )
            for row, mending in zip(batch, results, strict=True):
                for change in mending:
                    changes.setdefault(change, row)
            trials.left += sum(own.left for own in batch.values())
        return changes

    def _affordable(
        self, trials: Trials, left: list[int], lost: Collection[int], reserve: int
    ) -> dict[int, Trials]:
        """Take the rows off a list that there are rollouts to search, each with an allowance."""
        halves, nearest_first = 5 + 2 * len(self.served).bit_length(), 3 + 2 * _TRIED
        batch: dict[int, Trials] = {}
        while left:
            most = halves if left[0] in lost else nearest_first
            if trials.left < most + reserve:
                break
            batch[left.pop(0)] = trials.apart(most)
        return batch

    async def search(
        self, trials: Trials, row: int, changes: Sequence[Change], *, is_lost: bool
    ) -> list[Change]:
        """Return what else must change to mend a row; nothing where that is unknown, or chance.

        Any line that a row reads may spoil it where it was right before. One that never was
        right may need what is nearest to it, or be better off without that.
        """
        score = self.tested.scores[row]

        async def is_mended(more: Iterable[Change]) -> bool:
            text = self.lines.changed(self.tested.text, [*changes, *more])
            return self.allows(self.tested.text, text) and await trials.score(text, row) > score

        async def reordered(more: Iterable[Change]) -> float:
            text = self.lines.changed(self.tested.text, [*changes, *more])
            return await trials.score(self.lines.reordered(text), row)

        if changes and await is_mended([]):
            return []
        served, waiting = (
            [change for change in suspects if change not in changes]
            for suspects in (self.served, self.waiting)
        )
        served = await self.tested.relevant(served, row)
        if is_lost:
            more = await halved(served, is_mended)
        else:
            near = (_nearest(trials.inputs(row), suspects) for suspects in (waiting, served))
            turns = chain.from_iterable(zip_longest(*near))
            more = await first_of([change for change in turns if change], is_mended)
        # A row that turns with the order of the same lines turns by chance.
        if more and await reordered([]) <= score and await reordered(more) > score:
            return more
        return []


def _nearest(words: str, changes: Sequence[Change]) -> list[Change]:
    places = nearest(words, [change.lesson.text for change in changes], _TRIED)
    return [changes[place] for place in places]
