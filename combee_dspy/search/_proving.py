"""Tests the lines of a learned text on validation rows, once, before it is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from combee_dspy.evaluation import perfect_score_of
from combee_dspy.events import LessonTested
from combee_dspy.lessons import Book
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Scores, paired
from combee_dspy.search._choices import compare
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._pool import CandidatePool, Draws, mean_scores
from combee_dspy.search._row_search import RowSearch
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._trials import Allows, Change, LessonLines, Trials, Validated, lesson_effect
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
        self._member = self.pool.members[-1]  # the text that passed last, and its rollouts
        self._draws: Draws = {}
        self._emit, room = self.pool.effects.emit, self.pool.effects.purse.room
        self._is_limited = room is not None
        left = self.pool.size if room is None else room
        self._trials = Trials(self.pool, self._member.step, left)
        self._lines = LessonLines(self.books.artifact, self.books.now)

    async def prove(self, newest: Candidate, basis: Mapping[str, Book]) -> None:
        """Validate the newest text, then test its lines, as far as the budget goes.

        Where it limits no rollouts, as in one pass over the rows, one validation is all.

        Args:
            newest: It may hold lines that were never validated.
            basis: The books that it was made to show, by component.
        """
        with suppress(BudgetReached):  # what passed by then is in the pool
            await self._validate(newest, basis)
            await self._test_lines()

    async def validate(self, newest: Candidate) -> None:
        """Validate the last text of a run that a limit on cost has ended, and test nothing."""
        # What the update that was cut has taken is not taken where the run is compiled again.
        place, left = f"left/{budget_digest(self.pool.task)}", self._trials.left
        self._trials.left = await self.pool.effects.decide(place, lambda: left)
        with suppress(BudgetReached):
            await self._validate(newest, {})

    async def _test_lines(self) -> None:
        await self._serve_exceptions()
        await self._mend_rows()
        if not self._is_limited:
            self._trials.left = _ARRANGEMENTS * self.pool.size
        await self._rearrange()

    @property
    def _tested(self) -> Validated:
        """The text that passed last."""
        return Validated(self.books.artifact, self._member.candidate, self._draws)

    @property
    def _failing(self) -> list[int]:
        scores = self._member.scores
        perfect = perfect_score_of(self.pool.task.settings.perfect_score, scores.values())
        return sorted(row for row, score in scores.items() if score < perfect)

    async def _validate(self, newest: Candidate, basis: Mapping[str, Book]) -> None:
        """Validate the newest text, with what was decided of lessons since it was made.

        On as many rows as are left to buy, if those are half of all or more: what the last
        comparisons decided would be lost otherwise, and the rollouts stay unused.
        """
        last = self._member
        at_hand = [self.pool.all_rows[row] for row in sorted(last.scores)]
        self._draws = await self.pool.validate(last.candidate, at_hand, last.step)
        text = self._lines.follow(newest, basis)
        if not self.allows(newest, text):
            text = newest
        rows = sorted(self._draws)
        most = min(self._trials.left // self.pool.draws, len(rows))
        if text.id == self._member.candidate.id or 2 * most < len(rows):
            return
        part = [rows[place * len(rows) // most] for place in range(most)]  # rows may be sorted
        draws = await validate_paid(self._trials, text, part)
        if 2 * len(draws) >= len(rows):
            self._join(text, draws, list(self.books.now), is_part=len(draws) < len(rows))

    async def _serve_exceptions(self) -> None:
        """Test all exceptions that wait at once: only as a group do true ones differ from noise."""
        waiting = self._lines.open_changes(self._member.candidate, serve=True)
        exceptions = dict.fromkeys(change for change in waiting if change.lesson.rule)
        await self._confirm(exceptions, "exceptions that one example each teaches")

    async def _mend_rows(self) -> None:
        """Search failing rows for changes that mend them, and confirm those: together, or each."""
        served, waiting = (
            self._lines.open_changes(self._member.candidate, serve=serve) for serve in (False, True)
        )
        search = RowSearch(self._lines, self._tested, self.allows, served, waiting)
        earlier = {
            row: member.candidate
            for member in self.pool.members
            for row, score in member.scores.items()
            if score > self._member.scores.get(row, score)
        }
        reserve = _FEW_ROWS * self.pool.draws if self._is_small else self.pool.size
        changes = await search.mend(self._trials, self._failing, earlier, reserve=reserve)
        if await self._confirm(changes, "changes that mend failing rows") or len(changes) < 2:
            return
        for change, row in changes.items():
            what = "a change that mends a failing row"
            await self._confirm({change: row}, what, tests=len(changes))

    async def _confirm(
        self, changes: Mapping[Change, int | None], what: str, tests: int = 1
    ) -> bool:
        """Make changes where the rows that they concern speak for them together.

        Args:
            changes: With the row that each was chosen on.
            what: What they are, for the reason.
            tests: Of how many tests this is one: some would pass by chance.

        Returns:
            Whether the changes were made.
        """
        before = self._member
        text = self._lines.changed(before.candidate, changes)
        if text.id == before.candidate.id or not self.allows(before.candidate, text):
            return False
        draws = await self._trials.validate(text, await self._concerned(text, changes))
        if not draws:
            return False  # no rollout is left, or no row reads the change
        scores = mean_scores(draws)
        wins, losses, accepted = compare(before.scores, scores, tests, changes.values())
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
            self._join(text, draws, sorted({change.component for change in changes}))
        return accepted

    def _edit_books(
        self, changes: Sequence[Change], reason: str, weight: int, scores: Scores
    ) -> None:
        """Make changes in the books. Rows that speak for a group count for each by its share."""
        effect = None
        if len(changes) == 1:  # nobody can tell the effects of several apart
            before, after = paired(self._member.scores, scores)
            is_served = changes[0].serve
            effect = lesson_effect(before, after) if is_served else lesson_effect(after, before)
        for change in changes:
            edit = change.edit(reason, weight // len(changes), effect)
            self.books.edit(change.component, [edit], self._member.step)

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
        rows = await self._tested.affected(text)
        if not self._is_small:
            return rows
        chosen = [row for row in changes.values() if row is not None]
        near = [
            row
            for change in changes
            for row in self._trials.nearest(change.lesson.text, rows, _NEAREST_ROWS)
        ]
        ranked = dict.fromkeys(row for row in (*chosen, *near, *self._failing) if row in rows)
        return list(ranked)[: self._trials.left // self.pool.draws]

    async def _rearrange(self) -> None:
        """Try other arrangements of the same lessons, where the artifact has any.

        One that shows fewer is taken where it does no worse, another where rows speak for it.
        """
        if not self._draws:
            return  # no row says that fewer lessons do no worse
        tried = {self._member.candidate.id}
        while arrangements := [each for each in self._arrangements() if each[0].id not in tried]:
            text, component, shows_fewer = arrangements[0]
            tried.add(text.id)
            draws = await self._trials.validate(text, await self._tested.affected(text))
            if draws is None:
                return
            wins, losses, accepted = compare(self._member.scores, mean_scores(draws))
            if accepted or (shows_fewer and wins >= losses):
                self._join(text, draws, [component])

    def _arrangements(self) -> list[tuple[Candidate, str, bool]]:
        """Return other arrangements, each with its component and whether it shows fewer lessons."""
        base, arrangements = self._member.candidate, self.books.artifact.arrangements
        return [
            (base.edited({component: other.text}), component, other.shows_fewer)
            for component, book in self.books.now.items()
            for other in arrangements(base.texts[component], book)
        ]

    def _join(
        self, text: Candidate, draws: Draws, components: Sequence[str], *, is_part: bool = False
    ) -> None:
        """Let a text join the pool. A row that its change does not concern keeps its rollouts; of a
        part of the rows nothing is known of the others.
        """
        parent = self._member
        event = text.proposed((parent.candidate.id,), "test", tuple(components))
        self._emit(event, step=parent.step)
        if is_part:
            self.pool.join_part(text, (parent.index,), parent.step, draws)
            return
        self._draws = {**self._draws, **draws}
        self._member = self.pool.join(text, (parent.index,), parent.step, self._draws)
