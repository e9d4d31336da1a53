"""Searches validation rows that a text fails for the lessons that spoil or would mend them.

Lessons arrive in groups, so past rollouts cannot tell which of them harms. A failing row can: a
good line that is left out cannot hide the gain from a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from combee_dspy.aggregators import together
from combee_dspy.lessons import nearest
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._trials import Allows, Change, LessonLines, Trials, Validated

IsMended = Callable[[Iterable[Change]], Coroutine[object, object, bool]]
"""Whether a row is right once all of these change."""

# Lessons of each kind, served and waiting, that are tried on a row that never was right.
_TRIED = 4
# Lessons that may spoil a row together: two wordings of one lesson, or three.
_TOGETHER = 3


async def halved(suspects: Sequence[Change], is_mended: IsMended) -> list[Change]:
    """Return the few suspects that must change to mend a row, found by halves.

    That takes about 2 · log2 n trials. Two lessons that say the same hide each other: the row stays
    spoilt until both have changed. None are returned where all suspects together do not mend the
    row, or more than three must change.
    """
    if not suspects or not await is_mended(suspects):
        return []
    culprits = await _narrowed(suspects, [], is_mended)
    are_few = len(culprits) <= _TOGETHER
    return culprits if len(culprits) == 1 or (are_few and await is_mended(culprits)) else []


async def _narrowed(
    suspects: Sequence[Change], others: Sequence[Change], is_mended: IsMended
) -> list[Change]:
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


async def first_of(suspects: Sequence[Change], is_mended: IsMended) -> list[Change]:
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
        served: Lessons that may spoil a row.
        waiting: Lessons that a row may lack.
    """

    lines: LessonLines
    tested: Validated
    allows: Allows
    served: Sequence[Change]
    waiting: Sequence[Change] = ()

    async def mend(
        self,
        trials: Trials,
        failing: Sequence[int],
        earlier: Mapping[int, Candidate],
        *,
        reserve: int,
    ) -> dict[Change, int]:
        """Return changes that mend failing rows, each with its row.

        Rows that an earlier text did better come first. As many rows are searched at once as there
        are rollouts for, but for a reserve. What one batch finds is tried first in the next.

        Args:
            trials: Runs them.
            failing: The rows.
            earlier: By row, the latest text that did it better.
            reserve: Rollouts that must be left.
        """
        since = {row: self.came_since(earlier[row]) for row in failing if row in earlier}
        lost = {row: suspects for row, suspects in since.items() if suspects}
        left = sorted(failing, key=lambda row: (row not in lost, row))
        changes: dict[Change, int] = {}
        while batch := self._affordable(trials, left, lost, reserve):
            results = await together(
                self.search(own, row, list(changes), lost.get(row)) for row, own in batch.items()
            )
            for row, mending in zip(batch, results, strict=True):
                for change in mending:
                    changes.setdefault(change, row)
            trials.left += sum(own.left for own in batch.values())
        return changes

    def came_since(self, earlier: Candidate) -> list[Change]:
        """Return the served lessons that an earlier text does not show."""
        old = {change.place for change in self.lines.open_changes(earlier, serve=False)}
        return [change for change in self.served if change.place not in old]

    def _affordable(
        self, trials: Trials, left: list[int], lost: Mapping[int, Sequence[Change]], reserve: int
    ) -> dict[int, Trials]:
        """Take the rows off a list that there are rollouts to search, each with an allowance."""
        batch: dict[int, Trials] = {}
        for row in tuple(left):
            suspects = lost.get(row)
            halves = _TRIED if suspects is None else 2 + 2 * len(suspects).bit_length()
            most = 3 + _TRIED + halves  # the changes so far, and two trials that rule chance out
            if trials.left >= most + reserve:
                left.remove(row)
                batch[row] = trials.apart(most)
        return batch

    async def search(
        self,
        trials: Trials,
        row: int,
        changes: Sequence[Change],
        suspects: Sequence[Change] | None = None,
    ) -> list[Change]:
        """Return what else must change to mend a row; nothing where that is unknown, or chance.

        Any suspect that a row reads may spoil it: what came since a text that did it better. The
        nearest are tried first. A row without such a text may need what is nearest to it, or be
        better off without that.
        """
        score = self.tested.scores[row]

        async def is_mended(more: Iterable[Change]) -> bool:
            text = self.lines.changed(self.tested.text, [*changes, *more])
            return self.allows(self.tested.text, text) and await trials.score(text, row) > score

        if changes and await is_mended([]):
            return []
        waiting, served = (
            [change for change in each if change not in changes]
            for each in ((self.waiting, self.served) if suspects is None else ((), suspects))
        )
        served = await self.tested.relevant(served, row)
        near = (_nearest(trials.inputs(row), each) for each in (waiting, served))
        turns = chain.from_iterable(zip_longest(*near))
        more = await first_of([change for change in turns if change], is_mended)
        if not more and suspects is not None:
            more = await halved(served, is_mended)
        rest = [change for change in self.served if change not in (*changes, *more)]
        if not more or not rest:
            return more
        # A row that turns as a line leaves that has nothing to do with it turns by chance. One that
        # shares words with it, or is no suspect, may be needed beside the others: it leaves alone.
        alike = nearest(trials.inputs(row), [change.lesson.text for change in rest], len(rest))
        apart = [place for place in range(len(rest)) if place not in alike]
        other = rest[(apart or alike)[-1]]
        both = [*more, other] if apart and (suspects is None or other in suspects) else more
        return more if not await is_mended([other]) and await is_mended(both) else []


def _nearest(words: str, changes: Sequence[Change]) -> list[Change]:
    places = nearest(words, [change.lesson.text for change in changes], _TRIED)
    return [changes[place] for place in places]
