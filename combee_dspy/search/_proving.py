"""Lines must earn their place: what the book serves is tried on validation rows before it is
returned.

Lessons arrive in groups, so rollouts that were bought before cannot tell which of them harms.
Failing rows can: where a row fails, a good line that is left out cannot hide the gain from a bad
one. So each failing row is searched for a line whose change mends it, and the changes are confirmed
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from combee_dspy.evaluation import perfect_score_of
from combee_dspy.events import LessonTested
from combee_dspy.lessons import Book, LessonEffect
from combee_dspy.records import Rollout
from combee_dspy.search._books import Books
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Candidate, Member, Scores
from combee_dspy.search._changes import Change, changed, follow, open_changes
from combee_dspy.search._confirming import compare, concerned
from combee_dspy.search._effects import Effects
from combee_dspy.search._mending import Mending
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._showing import Showing
from combee_dspy.search._trials import Trials, measured

__all__ = ["Proving"]

# Validations that other arrangements may take where no rollouts are limited.
_ARRANGEMENTS = 2


@dataclass(eq=False)
class Proving:
    """Tries the book's lines on validation rows, once, after the last update. What it finds joins
    the pool.

    A text is tried as operators wrote it: lines are added to it or taken out, and nothing else of
    it changes.

    Attributes:
        allows: Whether a text may stand in the place of another, by the guards and the budgets of
            operators.
    """

    effects: Effects
    pool: CandidatePool
    books: Books
    perfect_score: float
    allows: Callable[[Candidate, Candidate], bool]
    _rollouts: dict[str, Mapping[int, Sequence[Rollout]]] = field(default_factory=dict, init=False)

    async def prove(
        self,
        version: Member,
        newest: Candidate,
        asked: Mapping[str, Book],
        rollouts: Mapping[int, Sequence[Rollout]] | None,
    ) -> None:
        """Validate the newest text, then try its lines.

        Args:
            version: The last version that was validated.
            newest: The newest text, which may hold lines that were never validated.
            asked: The books that the newest text was made to show, by component.
            rollouts: The version's validation, where it is at hand.
        """
        if rollouts is not None:
            self._rollouts[version.candidate.id] = rollouts
        # Where no rollouts are limited, as in one pass over the rows, none are set aside: one
        # validation it is.
        room = self.effects.purse.room
        left = self.pool.size if room is None else room
        trials = Trials(self.effects, self.pool, version.step, left)
        try:
            proven = await self._newest(trials, version, self._up_to_date(newest, asked))
            proven = await self._mended(trials, await self._with_doubtful(trials, proven))
            if room is None:
                trials.left = _ARRANGEMENTS * self.pool.size
            await self._arranged(trials, proven)
        except BudgetReached:
            return  # what was confirmed by then is in the pool

    def _up_to_date(self, newest: Candidate, asked: Mapping[str, Book]) -> Candidate:
        """Return the newest text with what was decided of single lessons since it was made, where
        that is allowed.
        """
        text = follow(self.books, newest, asked)
        return text if self.allows(newest, text) else newest

    async def _newest(self, trials: Trials, version: Member, text: Candidate) -> Member:
        """Return the newest text, validated; the last validated version where the budget has no
        room for that.
        """
        rows = [self.pool.validation[index] for index in sorted(version.scores)]
        if text.id == version.candidate.id or trials.left < len(rows) * self.pool.draws:
            return version
        trials.left -= len(rows) * self.pool.draws
        return self._joined(
            version, text, await self.pool.validate(text, rows, version.step), list(self.books.now)
        )

    async def _with_doubtful(self, trials: Trials, version: Member) -> Member:
        """Try all exceptions that wait for evidence at once: validation tells true ones from noise
        as a group.
        """
        changes = [
            change
            for change in open_changes(self.books, version.candidate, serve=True)
            if change.lesson.rule
        ]
        return await self._confirmed(
            trials, version, changes, "exceptions that one example each teaches"
        )

    async def _mended(self, trials: Trials, version: Member) -> Member:
        """Search failing rows for lines whose change mends them, then confirm what was found."""
        mending = Mending(self.pool, self.books, version, self.showing(version), self.allows)
        changes = await mending.changes(trials, self._failing(version))
        proven = await self._confirmed(trials, version, changes, "changes that mend failing rows")
        if proven is version and len(changes) > 1:
            what = "a change that mends a failing row"
            for change in changes:
                proven = await self._confirmed(trials, proven, [change], what, tried=len(changes))
        return proven

    async def _arranged(self, trials: Trials, version: Member) -> None:
        """Try other arrangements of the same lessons, where the artifact knows any.

        One that shows fewer is taken where it does no worse, another where rows speak for it.
        """
        tried = {version.candidate.id}
        while True:
            arrangements = [
                (version.candidate.edited({component: other.text}), component, other.shows_fewer)
                for component, book in self.books.now.items()
                for other in self.books.artifact.arrangements(
                    version.candidate.texts[component], book
                )
            ]
            left = [each for each in arrangements if each[0].id not in tried]
            if not left:
                return
            text, component, shows_fewer = left[0]
            tried.add(text.id)
            rows = await concerned(trials, self.showing(version), text)
            if trials.left < len(rows) * self.pool.draws:
                return
            trials.left -= len(rows) * self.pool.draws
            rollouts = await self.pool.validate(text, rows, version.step)
            scores = {
                index: fmean(rollout.score for rollout in drawn)
                for index, drawn in rollouts.items()
            }
            wins, losses, accepted = compare(version.scores, scores)
            if accepted or (shows_fewer and wins >= losses):
                version = self._joined(version, text, rollouts, [component])

    async def _confirmed(
        self, trials: Trials, version: Member, changes: Sequence[Change], what: str, tried: int = 1
    ) -> Member:
        """Return a version with changes where the rows that they concern speak for them together.

        ``tried``: how many tests are made of which some would pass by chance.
        """
        text = changed(self.books, version.candidate, changes)
        lines = [change.lesson.text for change in changes]
        failing = self._failing(version)
        rows = await concerned(trials, self.showing(version), text, failing, lines)
        if text.id == version.candidate.id or trials.left < len(rows) * self.pool.draws:
            return version
        if not self.allows(version.candidate, text):
            return version
        trials.left -= len(rows) * self.pool.draws
        rollouts = await self.pool.validate(text, rows, version.step)
        scores = {
            index: fmean(rollout.score for rollout in drawn) for index, drawn in rollouts.items()
        }
        wins, losses, accepted = compare(version.scores, scores, tried)
        # A row that a change was chosen on makes up for no loss elsewhere.
        chosen_on = {change.chosen_on for change in changes}
        elsewhere = {index: score for index, score in scores.items() if index not in chosen_on}
        more, fewer, _ = compare(version.scores, elsewhere, tried)
        accepted = accepted and more >= fewer
        for change in changes:
            event = LessonTested(
                lesson=change.lesson.id,
                text=change.lesson.text,
                serve=change.serve,
                together=len(changes),
                rows=len(rows),
                wins=wins,
                losses=losses,
                accepted=accepted,
            )
            self.effects.log.emit(event, step=version.step, component=change.component)
        if not accepted:
            return version
        effect = self._effect(changes, version.scores, scores)
        reason = (
            f"{what}, {len(changes)} tried together: {wins} validation rows better and {losses}"
            " worse"
        )
        for change in changes:
            # Rows that speak for a group speak for each of it by its share.
            edit = change.edit(reason, (wins - losses) // len(changes), effect)
            self.books.edit(change.component, [edit], version.step)
        return self._joined(
            version, text, rollouts, sorted({change.component for change in changes})
        )

    def showing(self, version: Member) -> Showing:
        """Return what each validation row was shown by a version, as far as its rollouts are at
        hand.
        """
        rollouts = self._rollouts.get(version.candidate.id, {})
        scores = dict(sorted(version.scores.items()))
        return Showing(self.books.artifact, version.candidate, scores, rollouts)

    def _effect(
        self, changes: Sequence[Change], before: Scores, after: Scores
    ) -> LessonEffect | None:
        """Return what a test of a single lesson measured; ``None`` for several, whose effects
        nobody can tell apart.
        """
        if len(changes) > 1:
            return None
        rows = sorted(before.keys() & after.keys())
        old, new = [before[row] for row in rows], [after[row] for row in rows]
        return measured(old, new) if changes[0].serve else measured(new, old)

    def _joined(
        self,
        version: Member,
        text: Candidate,
        rollouts: Mapping[int, Sequence[Rollout]],
        components: list[str],
    ) -> Member:
        event = text.proposed((version.candidate.id,), "test", tuple(components))
        self.effects.log.emit(event, step=version.step)
        # A row that the change does not concern keeps its rollouts.
        self._rollouts[text.id] = {**self._rollouts.get(version.candidate.id, {}), **rollouts}
        return self.pool.join(text, (version.index,), version.step, self._rollouts[text.id])

    def _failing(self, version: Member) -> list[int]:
        perfect = perfect_score_of(self.perfect_score, list(version.scores.values()))
        return [index for index, score in sorted(version.scores.items()) if score < perfect]
