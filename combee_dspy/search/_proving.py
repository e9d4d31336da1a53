"""Tests the lines of a learned text on validation rows, once, before it is returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from combee_dspy.events import LessonTested
from combee_dspy.lessons import Book, about_none
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Scores, paired
from combee_dspy.search._choices import compare
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._last_text import LastText
from combee_dspy.search._pool import CandidatePool, mean_scores
from combee_dspy.search._row_search import RowSearch
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._trials import Allows, Change, LessonLines, Trials, lesson_effect
from combee_dspy.search._versions import validate_paid

# Validations that other arrangements may take where no rollouts are limited.
_ARRANGEMENTS = 2
# Rows nearest to a changed line that confirm the change.
_NEAREST_ROWS = 4
# Rows that confirm changes in a small budget: for two lines their own, those near them, and two
# more that fail.
_FEW_ROWS = 12


@dataclass(eq=False)
class Proving:
    """Tests the newest text and its lines. What passes joins the pool."""

    pool: CandidatePool
    books: Books
    allows: Allows

    def __post_init__(self) -> None:
        self._last = LastText(self.pool, self.books.artifact)
        self._effects, self._purse = self.pool.effects, self.pool.effects.purse
        self._digest = budget_digest(self.pool.task)
        self._emit, room = self._effects.emit, self._purse.room
        self._is_limited = room is not None
        left = self.pool.size if room is None else room
        self._trials = Trials(self.pool, self._last.member.step, left)
        self._lines = LessonLines(self.books.artifact, self.books.now)

    async def prove(
        self, newest: Candidate, basis: Mapping[str, Book], *, was_cut: bool = False
    ) -> None:
        """Validate the newest text, then test its lines, as far as the budget goes.

        Where it limits no rollouts, as in one pass over the rows, few are tested.

        Args:
            newest: It may hold lines that were never validated.
            basis: The books that it was made to show, by component.
            was_cut: Whether a limit on cost has ended the run: what it leaves pays for the tests.
        """
        try:
            self._last.check()
            if was_cut:
                # What the update that was cut has taken is not taken where the run is compiled
                # again.
                await self._allow("left", lambda: self._trials.left)
            await self._validate(newest, basis)
            if was_cut:
                most = self._trials.left if self._is_limited else _ARRANGEMENTS * self.pool.size
                await self._allow("tests", lambda: self._purse.rollouts_paid(most))
                self._is_limited = True
            await self._test_lines()
        except BudgetReached:  # what passed by then is in the pool
            await self._last.cut_off()

    async def _allow(self, place: str, count: Callable[[], int]) -> None:
        """Set how many rollouts may be taken, as they were counted when the run ended."""
        self._trials.left = await self._effects.decide(f"{place}/{self._digest}", count)

    async def _test_lines(self) -> None:
        await self._serve_exceptions()
        await self._mend_rows()
        if not self._is_limited:
            self._trials.left = _ARRANGEMENTS * self.pool.size
        await self._leave_out_needless()
        await self._rearrange()

    async def _validate(self, newest: Candidate, basis: Mapping[str, Book]) -> None:
        """Validate the newest text, with what was decided of lessons since it was made.

        On as many rows as are left to buy, if those are half of all or more: what the last
        comparisons decided would be lost otherwise, and the rollouts stay unused.
        """
        await self._last.validate()
        text = self._lines.follow(newest, basis)
        if not self.allows(newest, text):
            text = newest
        rows = sorted(self._last.draws)
        most = min(self._trials.left // self.pool.draws, len(rows))
        if text.id == self._last.member.candidate.id or 2 * most < len(rows):
            return
        part = [rows[place * len(rows) // most] for place in range(most)]  # rows may be sorted
        draws = await validate_paid(self._trials, text, part)
        if 2 * len(draws) >= len(rows):
            self._last.join(text, draws, list(self.books.now), is_part=len(draws) < len(rows))

    async def _serve_exceptions(self) -> None:
        """Test all exceptions that wait at once: only as a group do true ones differ from noise."""
        waiting = self._lines.open_changes(self._last.member.candidate, serve=True)
        exceptions = dict.fromkeys(change for change in waiting if change.lesson.rule)
        await self._confirm(exceptions, "exceptions that one example each teaches")

    async def _mend_rows(self) -> None:
        """Search failing rows for changes that mend them, and confirm those: together, or each."""
        served, waiting = (
            self._lines.open_changes(self._last.member.candidate, serve=serve)
            for serve in (False, True)
        )
        search = RowSearch(self._lines, self._last.tested, self.allows, served, waiting)
        earlier = {
            row: member.candidate
            for member in self.pool.members
            for row, score in member.scores.items()
            if score > self._last.member.scores.get(row, score)
        }
        reserve = _FEW_ROWS * self.pool.draws if self._is_small else self.pool.size
        changes = await search.mend(self._trials, self._last.failing, earlier, reserve=reserve)
        if await self._confirm(changes, "changes that mend failing rows") or len(changes) < 2:
            return
        for change, row in changes.items():
            what = "a change that mends a failing row"
            await self._confirm({change: row}, what, tests=len(changes))

    async def _leave_out_needless(self) -> None:
        """Leave out, at once, the lines that no example is about, where the rest does no worse."""
        served = self._lines.open_changes(self._last.member.candidate, serve=False)
        needless: dict[Change, None] = {}
        for component in self.books.now:
            lines = [change for change in served if change.component == component]
            texts = [change.lesson.text for change in lines]
            places = await asyncio.to_thread(about_none, texts, self.books.examples(component))
            if len(places) < len(lines):
                needless.update((lines[place], None) for place in places)
        await self._confirm(needless, "lines that no example is about", are_needless=True)

    async def _confirm(
        self,
        changes: Mapping[Change, int | None],
        what: str,
        tests: int = 1,
        *,
        are_needless: bool = False,
    ) -> bool:
        """Make changes where the rows that they concern speak for them together.

        Args:
            changes: With the row that each was chosen on.
            what: What they are, for the reason.
            tests: Of how many tests this is one: some would pass by chance.
            are_needless: Whether it is enough that no more rows speak against them than for them.

        Returns:
            Whether the changes were made.
        """
        before = self._last.member
        text = self._lines.changed(before.candidate, changes)
        if text.id == before.candidate.id or not self.allows(before.candidate, text):
            return False
        rows = await (
            self._last.spread(text, self._trials.left)
            if are_needless
            else self._concerned(text, changes)
        )
        draws = await self._trials.validate(text, rows)
        if not draws:
            return False  # no rollout is left, or no row reads the change
        scores = mean_scores(draws)
        wins, losses, accepted = compare(before.scores, scores, tests, changes.values())
        accepted |= are_needless and wins >= losses and _is_no_lower(before.scores, scores)
        for change in changes:
            tested = LessonTested(
                lesson=change.lesson.id,
                text=change.lesson.text,
                serve=change.serve,
                together=len(changes),
                rows=len(scores),
                wins=wins,
                losses=losses,
                accepted=accepted,
            )
            self._emit(tested, step=before.step, component=change.component)
        if accepted:
            counts = f"{wins} validation rows better and {losses} worse"
            reason = f"{what}, {len(changes)} tried together: {counts}"
            self._edit_books(list(changes), reason, wins - losses, scores)
            self._last.join(text, draws, sorted({change.component for change in changes}))
        return accepted

    def _edit_books(
        self, changes: Sequence[Change], reason: str, weight: int, scores: Scores
    ) -> None:
        """Make changes in the books. Rows that speak for a group count for each by its share."""
        effect = None
        if len(changes) == 1:  # nobody can tell the effects of several apart
            before, after = paired(self._last.member.scores, scores)
            is_served = changes[0].serve
            effect = lesson_effect(before, after) if is_served else lesson_effect(after, before)
        for change in changes:
            edit = change.edit(reason, weight // len(changes), effect)
            self.books.edit(change.component, [edit], self._last.member.step)

    @property
    def _is_small(self) -> bool:
        return self._trials.left < 2 * self.pool.size

    async def _concerned(
        self, text: Candidate, changes: Mapping[Change, int | None]
    ) -> Sequence[int]:
        """Return the rows that confirm changes: all that read something else.

        A small budget tries as many of them as it has rollouts for: those that the changes were
        chosen on, those nearest to each line, and then those that fail.
        """
        rows = await self._last.tested.affected(text)
        if not self._is_small:
            return rows
        chosen = [row for row in changes.values() if row is not None]
        near = [
            row
            for change in changes
            for row in self._trials.nearest(change.lesson.text, rows, _NEAREST_ROWS)
        ]
        ranked = dict.fromkeys(row for row in (*chosen, *near, *self._last.failing) if row in rows)
        return list(ranked)[: self._trials.left // self.pool.draws]

    async def _rearrange(self) -> None:
        """Try other arrangements of the same lessons, where the artifact has any.

        One that shows fewer is taken where it does no worse, another where rows speak for it.
        """
        if not self._last.draws:
            return  # no row says that fewer lessons do no worse
        tried = {self._last.member.candidate.id}
        while arrangements := [each for each in self._arrangements() if each[0].id not in tried]:
            text, component, shows_fewer = arrangements[0]
            tried.add(text.id)
            draws = await self._trials.validate(text, await self._last.tested.affected(text))
            if draws is None:
                return
            wins, losses, accepted = compare(self._last.member.scores, mean_scores(draws))
            if accepted or (shows_fewer and wins >= losses):
                self._last.join(text, draws, [component])

    def _arrangements(self) -> list[tuple[Candidate, str, bool]]:
        """Return other arrangements, each with its component and whether it shows fewer lessons."""
        base, arrangements = self._last.member.candidate, self.books.artifact.arrangements
        return [
            (base.edited({component: other.text}), component, other.shows_fewer)
            for component, book in self.books.now.items()
            for other in arrangements(base.texts[component], book)
        ]


def _is_no_lower(before: Scores, after: Scores) -> bool:
    old, new = paired(before, after)
    return fmean(new) >= fmean(old)
