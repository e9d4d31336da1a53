"""The search of failing validation rows for lessons whose change mends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from combee_dspy.aggregators import together
from combee_dspy.lessons import nearest
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Member
from combee_dspy.search._changes import Change, changed, open_changes
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._showing import Showing
from combee_dspy.search._trials import Trials, another_order, halved

__all__ = ["Mending"]

# Lines of each kind, served and waiting, that are tried on one failing row.
_TRIED = 4


@dataclass(frozen=True, slots=True)
class Mending:
    """Searches the failing rows of one version, many at once.

    Attributes:
        version: The version.
        showing: What it shows each row.
        allows: Whether a text may stand in the place of another.
    """

    pool: CandidatePool
    books: Books
    version: Member
    showing: Showing
    allows: Callable[[Candidate, Candidate], bool]

    async def changes(self, trials: Trials, failing: Sequence[int]) -> list[Change]:
        """Return changes, each of which mends a failing row, and spend no rollouts that their
        confirmation needs.

        Rows that the student has right come first.
        """
        left = sorted(failing, key=lambda index: (not self._is_lost(index), index))
        changes: list[Change] = []
        while left:
            searched: list[int] = []
            own: list[Trials] = []
            while left and trials.left - self._most(left[0]) >= self.pool.size:
                searched.append(left.pop(0))
                own.append(trials.apart(self._most(searched[-1])))
            if not searched:
                break
            searches = (self._search(*row, changes) for row in zip(own, searched, strict=True))
            for index, further in zip(searched, await together(searches), strict=True):
                # A row that finds one again speaks for it.
                changes += [
                    replace(change, chosen_on=index) for change in further if change not in changes
                ]
            trials.left += sum(each.left for each in own)
        return changes

    def _most(self, index: int) -> int:
        """Return the rollouts that the search of a row may take, and the check that it is no
        chance.
        """
        if not self._is_lost(index):
            return 3 + 2 * _TRIED
        lines = open_changes(self.books, self.version.candidate, serve=False)
        return 5 + 2 * len(lines).bit_length()

    def _is_lost(self, index: int) -> bool:
        """Return whether the student has a row right that the version fails."""
        return self.pool.members[0].scores.get(index, 0.0) > self.version.scores[index]

    async def _search(
        self, trials: Trials, index: int, changes: Sequence[Change]
    ) -> Sequence[Change]:
        """Return further changes that mend a failing row; none where none are found, or none are
        needed.
        """

        async def is_mended(more: Iterable[Change]) -> bool:
            text = self._changed([*changes, *more])
            return (
                self.allows(self.version.candidate, text)
                and await trials.score(text, index) > self.version.scores[index]
            )

        if changes and await is_mended([]):
            return []
        suspects = await self._suspects(trials, index, {change.lesson.id for change in changes})
        more: Sequence[Change] = []
        if self._is_lost(index):
            more = await halved(suspects, is_mended)
        else:
            # The nearest first: most rows that one of them mends, one of these does.
            for start in range(0, len(suspects), _TRIED):
                some = suspects[start : start + _TRIED]
                mended = await together(is_mended([suspect]) for suspect in some)
                if any(mended):
                    more = [some[mended.index(True)]]
                    break
        return [] if not more or await self._is_chance(trials, index, changes, more) else more

    async def _is_chance(
        self, trials: Trials, index: int, changes: Sequence[Change], more: Sequence[Change]
    ) -> bool:
        """Return whether the same lines in another order change the score, with further changes or
        without them.
        """
        before, after = (self._reordered([*changes, *some]) for some in ((), more))
        score = self.version.scores[index]
        fails = await trials.score(before, index) <= score
        return not fails or await trials.score(after, index) <= score

    def _is_shown(self, change: Change, index: int) -> bool:
        lines = change.lesson.wordings
        return any(self.showing.is_shown(change.component, line, index) for line in lines)

    def _changed(self, changes: Sequence[Change]) -> Candidate:
        return changed(self.books, self.version.candidate, changes)

    def _reordered(self, changes: Sequence[Change]) -> Candidate:
        text, artifact = self._changed(changes), self.books.artifact
        return text.edited(
            {
                component: another_order(artifact, text.texts[component])
                for component in self.books.now
            }
        )

    async def _suspects(self, trials: Trials, index: int, taken: set[str]) -> list[Change]:
        """Return the changes that may mend a failing row.

        Where the student has it right, any line that was learned may spoil it. Else those nearest
        to the row may be wrong, or missing.
        """
        served, waiting = (
            [
                change
                for change in open_changes(self.books, self.version.candidate, serve=serve)
                if change.lesson.id not in taken
            ]
            for serve in (False, True)
        )
        served = await asyncio.to_thread(
            lambda: [change for change in served if self._is_shown(change, index)]
        )
        if self._is_lost(index):
            return served
        text = trials.inputs(index)
        near = [
            [lines[place] for place in nearest(text, [line.lesson.text for line in lines], _TRIED)]
            for lines in (waiting, served)
        ]
        return [lines[place] for place in range(_TRIED) for lines in near if place < len(lines)]
