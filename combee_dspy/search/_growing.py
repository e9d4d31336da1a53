"""The other way to keep: one text that grows with the book, and lines that must earn their
place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from combee_dspy.evaluation import clearly_worse
from combee_dspy.lessons import Book, BookEdit
from combee_dspy.search._books import Books, ServedBooks
from combee_dspy.search._candidates import Candidate, Compilation, Member, Scores
from combee_dspy.search._choices import choose_version
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._effects import Effects, silence
from combee_dspy.search._keeper import Keeper
from combee_dspy.search._plans import Learned, Parent, UpdatePlan
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._propose import Proposer
from combee_dspy.search._proving import Proving
from combee_dspy.search._row_scores import RowScores
from combee_dspy.search._showing import Showing
from combee_dspy.search._spare import spare
from combee_dspy.search._trials import BLAMED, Trials, blame
from combee_dspy.search._versions import Rollouts, Version, describe_cut, find_cut_off

__all__ = ["Growing"]

# Rows of minibatches for each validation row.
_ROWS_A_VALIDATION = 0.5


@dataclass(eq=False)
class Growing(Keeper[Candidate, Rollouts | None]):
    """Serves the book of all updates in one text.

    Every update adds to the book, which weighs its lessons. Operators, or the artifact itself, make
    the next text from the one before and the book. A text is validated, beside the updates that
    follow, once the minibatches since the last validation have half as many rows as it: what a text
    of few new rows can show is not worth it. Where a version is clearly worse and no line is to
    blame, the next text is made from the best version instead.

    Lines are tested after the last update where rollouts are limited, which leaves some for it.
    Else they are tested as the run goes: where validation rows are lost, the new lines are searched
    for the one to blame, and the text of update i lacks what the tests of updates up to i − 1 −
    staleness retired.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    books: Books
    proposer: Proposer | ServedBooks

    def __post_init__(self) -> None:
        self._versions: list[Version] = []
        self._basis: dict[str, Book] = {}  # the books that the newest text was made to show
        self._due: set[int] = set()  # updates whose text is validated
        self._read = 0  # versions whose tests the book knows
        self._unvalidated = 0  # rows of minibatches since the last one whose text is validated
        self._rows = RowScores(self.task.settings.perfect_score)
        self._validated = self.task.seed
        self._best = Version(self.task.seed, None)
        self._staleness = self.task.settings.staleness
        self._proving = Proving(
            self.effects,
            self.pool,
            self.books,
            self.task.settings.perfect_score,
            self.proposer.allows,
        )
        self._spoiled = False
        self._rollouts: Rollouts | None = None  # those of the newest version in the pool

    def begin(self) -> None:
        """Set rollouts aside for the tests that follow the last update."""
        purse = self.effects.purse
        purse.set_aside = spare(
            purse.limits.rollouts, self.pool.size, judged=self.books.artifact.judges
        )

    @property
    def _tests_at_end(self) -> bool:
        return self.effects.purse.limits.rollouts is not None

    def ended(self, error: Exception | None) -> None:
        """Let go of validations that nobody waits for any more."""
        for version in self._versions:
            if version.validation is not None:
                version.validation.cancel()
            if not version.tested.done():
                version.tested.set_result(())

    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts of the minibatch, and of the new text's validation and tests."""
        rows = self.pool.beside_validation(size)
        if not self._is_due(size):
            return rows
        return rows + self.pool.size + (0 if self._tests_at_end else BLAMED)

    def _is_due(self, size: int) -> bool:
        """Return whether a text is validated after another minibatch of so many rows."""
        return self._unvalidated + size >= _ROWS_A_VALIDATION * self.pool.size

    def sampled(self, plan: UpdatePlan) -> None:
        """Decide whether the text of an update is validated, by the rows since the last one that
        was.
        """
        if plan.step > self._staleness:
            self._versions[plan.step - 1 - self._staleness].read.set_result(None)
        due = self._is_due(len(plan.rows))
        self._unvalidated = 0 if due else self._unvalidated + len(plan.rows)
        if due:
            self._due.add(plan.step)

    async def parent(self, step: int) -> Parent:
        """Return the newest text that is surely known, though a later one may be there already."""
        names, settings = self.task.components, self.task.settings
        if self.task.edits_instructions and settings.component_selector != "all":
            names = (names[step % len(names)],)
        return Parent(self._text(step - 1 - self._staleness), -1, names)

    def _text(self, step: int) -> Candidate:
        return self._versions[step].text if step >= 0 else self.task.seed

    def is_settled(self, last: int, size: int) -> bool:
        """Return whether all training rows were right when they ran last."""
        return self.task.settings.skip_perfect_score and self._rows.are_right(last, size)

    async def propose(self, learned: Learned) -> Candidate:
        """Make the next text, once the tests are there that it must know of."""
        step = learned.plan.step
        self._rows.end(learned)
        await self._read_tests(step - self._staleness, step)
        before = self._best.text if self._spoiled else self._text(step - 1)
        text = before if learned.skipped else await self.proposer.edited(learned, before)
        self._basis.update({component: self.books.now[component] for component in learned.lessons})
        validation = None
        if text.id != before.id:
            labels = "+".join(self.proposer.labels)
            event = text.proposed((before.id,), labels, tuple(learned.lessons))
            self.effects.log.emit(event, step=step)
            self.proposed = True
        if step in self._due and text.id != self._validated.id:
            self._validated = text
            validation = asyncio.ensure_future(self.pool.validate(text, self.pool.validation, step))
            # Where the run ends before anybody asks, nobody needs to hear that the budget had no
            # room for it.
            validation.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._versions.append(Version(text, validation))
        return text

    async def _read_tests(self, count: int, step: int) -> None:
        """Let the book know of the tests of the first versions, so many of them."""
        while self._read < count:
            version = self._versions[self._read]
            edits = await version.tested
            for component, edit in edits:
                self.books.edit(component, [edit], step)
            if version.is_validated:
                await self._compare(version, blamed=bool(edits))
            self._read += 1

    async def _compare(self, version: Version, *, blamed: bool) -> None:
        """Note the best version, and whether later ones are spoilt by something that is no line of
        the book.
        """
        _, best = await self._scored(self._best)
        _, scores = await self._scored(version)
        rows = sorted(best.keys() & scores.keys())
        before, after = [best[row] for row in rows], [scores[row] for row in rows]
        self._spoiled = bool(rows) and not blamed and clearly_worse(after, before)
        if rows and fmean(after) >= fmean(before):
            self._best = version

    async def _scored(self, version: Version | None) -> tuple[Candidate, Scores]:
        """Return a version's text and scores; the student's where there is none, or none
        validated.
        """
        if version is None or version.validation is None:
            return self.task.seed, self.pool.members[0].scores
        rollouts = await asyncio.shield(version.validation)
        means = {row: fmean(rollout.score for rollout in drawn) for row, drawn in rollouts.items()}
        return version.text, means

    async def check(
        self, learned: Learned, proposed: Candidate, turn: Callable[[], Awaitable[None]]
    ) -> Rollouts | None:
        """Validate the new text and test its lines; ``None`` where it is not validated."""
        step = learned.plan.step
        version = self._versions[step]
        edits: Sequence[tuple[str, BookEdit]] = ()
        try:
            if version.validation is None:
                return None
            rollouts = await asyncio.shield(version.validation)
            if not await self._is_read(version, turn):
                return rollouts
            earlier = next((past for past in self._versions[:step][::-1] if past.validation), None)
            before, after = await self._scored(earlier), await self._scored(version)
            trials = Trials(self.effects, self.pool, step, BLAMED)
            books = {component: self.books.after(component, step) for component in self.books.now}
            showing = Showing(self.books.artifact, *after, rollouts)
            edits = await blame(trials, showing, books, *before)
            return rollouts
        finally:
            if not version.tested.done():
                version.tested.set_result(edits)

    async def _is_read(self, version: Version, turn: Callable[[], Awaitable[None]]) -> bool:
        """Return whether the text of a later update must know of the tests of a version's lines.

        Such an update has begun before it is this one's turn.
        """
        if self._tests_at_end:
            return False
        last = asyncio.ensure_future(turn())
        last.add_done_callback(silence)
        await asyncio.wait({version.read, last}, return_when=asyncio.FIRST_COMPLETED)
        return version.read.done()

    async def commit(self, learned: Learned, checked: Rollouts | None) -> None:
        """Join the new text to the pool."""
        step = learned.plan.step
        if checked is not None:
            self._joined(self._versions[step].text, step, checked)

    async def result(self) -> Member:
        """Return the text that validation speaks for, once its lines are proven; the student where
        it speaks for none.

        Of versions within reach of the best one the newest, which has learned the most.
        """
        self.effects.purse.set_aside = 0
        await self._read_tests(len(self._versions), len(self._versions) - 1)
        await self._join_cut_off()
        version, newest = self.pool.members[-1], self._text(len(self._versions) - 1)
        await self._proving.prove(version, newest, self._basis, self._rollouts)
        return choose_version(self.pool.members, self.effects)

    async def _join_cut_off(self) -> None:
        """Join the last text where the budget cut its validation, by the rows that it has run on.

        Half of all rows and more say enough to compare it with others on these rows. A run that is
        compiled again does not begin the update of that text, so the decision holds it.
        """
        if not self.effects.purse.exhausted or self.task.settings.privacy.texts == "hashes":
            return
        cut = await self.effects.decide(
            f"cut/{budget_digest(self.task)}", lambda: find_cut_off(self._versions, self.pool)
        )
        if cut:
            text, step = Candidate(cut["texts"]), cut["step"]
            rows = [self.pool.validation[index] for index in cut["rows"]]
            self._joined(text, step, await self.pool.validate(text, rows, step))
            self.effects.warn(describe_cut(self.pool.members))

    def _joined(self, text: Candidate, step: int, rollouts: Rollouts) -> None:
        """Let the text of an update join the pool."""
        self._rollouts = rollouts
        self.pool.join(text, (self.pool.members[-1].index,), step, rollouts)
