"""Keeps what a run learns in one text, which grows with the book of lessons."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from statistics import fmean

from combee_dspy.evaluation import clearly_worse
from combee_dspy.lessons import Book
from combee_dspy.search._blame import BLAMED, Edits, blame
from combee_dspy.search._books import Books, ServedBooks
from combee_dspy.search._candidates import Candidate, Member, Scores, paired
from combee_dspy.search._choices import choose_version, is_large, spare
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._effects import silence
from combee_dspy.search._keeper import Keeper, Learned, Parent, UpdatePlan
from combee_dspy.search._pool import CandidatePool, Draws, mean_scores
from combee_dspy.search._propose import Proposer
from combee_dspy.search._proving import Proving
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._trials import LessonLines, Trials, Validated
from combee_dspy.search._versions import RowScores, Version, ended_well, join_cut_off

# A text is validated once the minibatches since the last validation have this part of its rows: a
# text of few new rows has little to show.
_ROWS_A_VALIDATION = 0.5


@dataclass(eq=False)
class Growing(Keeper):
    """Adds what each update learns to the book, and makes the next text from the last one and it.

    Validations run beside the updates that follow. Update i knows of the tests of updates up to i −
    1 − staleness. Where a version is clearly worse than the best, and no line is to blame, the next
    text is made from the best version instead. Lines that the book serves come back with it.

    A run that limits rollouts sets some aside and tests its lines after the last update. One that
    has room for many validations tests them as it goes, too: where validation rows are lost, the
    new lines are searched for those to blame.
    """

    pool: CandidatePool
    books: Books
    proposer: Proposer | ServedBooks

    def __post_init__(self) -> None:
        self._task, self._effects = self.pool.task, self.pool.effects
        settings, seed = self._task.settings, self._task.seed
        self._staleness = settings.staleness
        self._versions: list[Version] = []  # by update
        self._basis: dict[str, Book] = {}  # the books that the newest text was made to show
        self._next = 0  # the update whose minibatch is planned
        self._due: set[int] = set()  # updates whose text is validated
        self._unvalidated = 0  # rows of minibatches since the last of those updates
        self._best: tuple[Candidate, Scores] = seed, {}  # without scores until one is compared
        self._is_spoiled = False  # the last version, by something that is no line
        self._renewed = 0  # the first version that was made from the best since then
        self._blames = True  # whether lines are tested while the run goes on
        self._compared = 0  # versions whose tests are known
        self._committed = 0  # updates
        self._rows = RowScores(settings.perfect_score)

    async def begin(self) -> None:
        """Set rollouts aside for the last tests, and decide whether there are earlier ones.

        What was decided stays with the run: a larger budget would change texts that it has paid.
        """
        await self._effects.decide("compared", lambda: len(self.pool.validation))
        purse, pool, judged = self._effects.purse, self.pool, self.books.artifact.judges
        purse.set_aside = spare(purse.limits.rollouts, pool.size, pool.draws, judged=judged)
        limit = purse.limits.rollouts
        blames = limit is None if pool.is_of_older_code else is_large(limit, pool.size)
        self._blames = await self._effects.decide("tests", lambda: blames)

    def ended(self, error: Exception | None) -> None:
        """Cancel validations and tests that nobody waits for any more."""
        for version in self._versions:
            for task in (version.validation, version.tests):
                if task is not None:
                    task.cancel()

    def rollouts(self, size: int, run: int, children: int) -> int:
        """Return the rollouts of the minibatch, and of the new text's validation and tests."""
        known = self._task.texts_known(self._next)
        validated = self._text(known - 1).id == self._validated_text(known).id
        rows = self.pool.beside_validation(run) if validated else run
        if not self._is_due(size):
            return rows
        return rows + self.pool.size + (BLAMED if self._blames else 0)

    def _is_due(self, size: int) -> bool:
        """Return whether a text is validated after another minibatch of so many rows."""
        return self._unvalidated + size >= _ROWS_A_VALIDATION * self.pool.size

    def sampled(self, plan: UpdatePlan) -> None:
        """Decide whether the text of an update is validated; begin the tests that it must know."""
        self._next = plan.step + 1
        self._unvalidated += len(plan.rows)
        if self._is_due(0):
            self._due.add(plan.step)
            self._unvalidated = 0
        tested = plan.step - 1 - self._staleness
        if self._blames and tested >= 0:
            tests = asyncio.ensure_future(self._blame(tested))
            tests.add_done_callback(silence)
            self._versions[tested].tests = tests

    async def parent(self, step: int) -> Parent:
        """Return the last text that is there for certain: later ones may not be there yet."""
        names = self._task.components
        if self._task.takes_turns:
            names = (names[step % len(names)],)
        return Parent(self._text(self._task.texts_known(step) - 1), -1, names)

    def _text(self, step: int) -> Candidate:
        return self._versions[step].text if step >= 0 else self._task.seed

    def _last_validated(self, step: int) -> Version | None:
        """Return the last version before an update whose validation has begun."""
        return next((past for past in self._versions[:step][::-1] if past.validation), None)

    def _validated_text(self, step: int) -> Candidate:
        last = self._last_validated(step)
        return last.text if last else self._task.seed

    def is_settled(self, last: int, size: int) -> bool:
        """Return whether all training rows were right when they ran last."""
        return self._task.settings.skip_perfect_score and self._rows.are_right(last, size)

    async def propose(self, learned: Learned) -> None:
        """Make the next text, once the tests are there that it must know of."""
        step = learned.plan.step
        self._rows.end(learned)
        await self._read_tests(step - self._staleness, step)
        base = self._text(step - 1)
        if self._is_spoiled:
            base, self._is_spoiled, self._renewed = self._best[0], False, step
        text = base if learned.skipped else await self.proposer.edited(learned, base)
        self._basis.update({component: self.books.now[component] for component in learned.lessons})
        if text.id != base.id:
            labels = "+".join(self.proposer.labels)
            event = text.proposed((base.id,), labels, tuple(learned.lessons))
            self._effects.emit(event, step=step)
            self.proposed = True
        self._versions.append(Version(text, self._validation(text, step)))

    def _validation(self, text: Candidate, step: int) -> asyncio.Task[Draws] | None:
        """Begin the validation of a text, where it is due and the text is new."""
        if step not in self._due or text.id == self._validated_text(step).id:
            return None
        validation = asyncio.ensure_future(self.pool.validate(text, self.pool.validation, step))
        validation.add_done_callback(silence)  # where the run ends first, nobody asks for it
        return validation

    async def _read_tests(self, count: int, step: int) -> None:
        """Edit the books by the tests of the first versions, and note the best of them."""
        for version in self._versions[self._compared : max(count, 0)]:
            edits = await ended_well(version.tests) or ()
            for component, edit in edits:
                self.books.edit(component, [edit], step)
            draws = await ended_well(version.validation)
            if draws is not None:
                student = await self.pool.student()
                self._compare(version.text, mean_scores(draws), student, blamed=bool(edits))
            self._compared += 1

    def _compare(self, text: Candidate, scores: Scores, student: Member, *, blamed: bool) -> None:
        """Note whether a version is the best, or clearly worse though no line is to blame."""
        before, after = paired(self._best[1] or student.scores, scores)
        if not before:
            return
        is_spoiled = not blamed and clearly_worse(after, before)
        self._is_spoiled = is_spoiled and self._compared >= self._renewed
        if fmean(after) >= fmean(before):
            self._best = text, scores

    async def _blame(self, step: int) -> Edits:
        """Return edits that retire lines of a version which spoil rows, by the books after it.

        Tests that a limit cuts edit nothing, and so again where the limit is no longer there.
        """
        cut = f"cut-tests/{budget_digest(self._task)}/{step}"
        draws = await ended_well(self._versions[step].validation)
        if draws is None or self._effects.past_decision(cut):
            return []
        student, last = await self.pool.student(), self._last_validated(step)
        earlier, before = student.candidate, student.scores
        if last is not None and (past := await ended_well(last.validation)) is not None:
            earlier, before = last.text, mean_scores(past)
        artifact = self.books.artifact
        books = {component: self.books.after(component, step) for component in self.books.now}
        tested = Validated(artifact, self._versions[step].text, draws)
        trials = Trials(self.pool, step, BLAMED)
        lines = LessonLines(artifact, books)
        try:
            return await blame(trials, lines, tested, earlier, before, self.proposer.allows)
        except BudgetReached as reached:
            reason = str(reached)
        if not self._effects.purse.postponed:
            await self._effects.decide(cut, lambda: reason, step=step)
        return []

    async def check(self, learned: Learned) -> None:
        """Wait for the validation of the new text, if it gets one."""
        validation = self._versions[learned.plan.step].validation
        if validation is not None:
            await asyncio.shield(validation)

    async def commit(self, learned: Learned) -> None:
        """Join the new text to the pool, once its tests have ended: they count for this update."""
        step = learned.plan.step
        version, self._committed = self._versions[step], step + 1
        await ended_well(version.tests)
        if version.validation is not None:
            parents = (self.pool.members[-1].index,)
            self.pool.join(version.text, parents, step, version.validation.result())

    async def result(self) -> Member:
        """Return the text that validation speaks for, once its lines are tested."""
        purse, last = self._effects.purse, len(self._versions) - 1
        await self._read_tests(last + 1, last)
        was_cut, joined = purse.exhausted, await join_cut_off(self._versions, self.pool)
        purse.begin_last()
        proving = Proving(self.pool, self.books, self.proposer.allows)
        if not was_cut:
            await proving.prove(self._text(last), self._basis)
        elif not joined and not purse.postponed:
            # An update that was cut leaves nothing: where the run goes on, it does not begin.
            self.books.rewind(self._committed - 1)
            await proving.prove(self._text(self._committed - 1), {}, was_cut=True)
        return self.pool.select(*choose_version(self.pool.members))
