"""Training rollouts that leave out lines in doubt: a part that was tried and is not in the package.

Each served line of the run that nothing has decided is in doubt. A training rollout leaves it out
with a seeded probability, which costs no rollout. Scores with and without it are compared over the
rows that concern it, and a line that clearly harms leaves the book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from scipy import stats

from combee_dspy.lessons import Book, BookLesson, Retire
from combee_dspy.records import Reflection, Rollout
from combee_dspy.reflections import Vocabulary, subject_words
from combee_dspy.search._candidates import Candidate, EffectPlace, Row
from combee_dspy.search._growing import Growing
from combee_dspy.search._keeper import Learned, UpdatePlan
from combee_dspy.search._trials import Change, LessonLines
from combee_dspy.search._update import UpdateLearner
from combee_dspy.streams import derive

__all__ = ["leaving_out"]

# Lines that harm nothing and leave, in a run, if all looks at all lines are counted.
_FALSE = 0.05
_ROWS = 2  # what a decision weighs: as much as one of the search for lines to blame

_Rolled = Callable[[UpdateLearner, UpdatePlan, Row], Awaitable[Rollout]]


class _Tally:
    """What the rollouts of one run showed of each line, on the rows that concern it."""

    def __init__(self) -> None:
        self.left: dict[tuple[int, int], tuple[str, ...]] = {}  # by update and row
        self._shown: dict[tuple[int, int], tuple[str, ...]] = {}
        self._counts: Counter[tuple[str, bool, bool]] = Counter()  # line, left out, right

    def choose(
        self, plan: UpdatePlan, row: Row, books: Mapping[str, Book], lines: LessonLines, part: float
    ) -> Candidate:
        """Return the text that a row runs on, and note the lines that concern it."""
        candidate, place = plan.parent.candidate, (plan.step, row.index)
        changes = lines.open_changes(candidate, serve=False)
        stream = derive(0, "leave out", plan.step, row.hash)
        left = [change for change in changes if stream.random() < part]
        concerned = {change.lesson.id for change in changes if _concerns(change, books, row)}
        ids = [change.lesson.id for change in left]
        self.left[place] = tuple(line for line in ids if line in concerned)
        self._shown[place] = tuple(sorted(concerned.difference(ids)))
        return lines.changed(candidate, left)

    def count(self, learned: Learned) -> None:
        """Count the rollouts of an update."""
        for row, rollout in zip(learned.plan.rows, learned.rollouts, strict=True):
            place, right = (learned.plan.step, row.index), rollout.score >= 1
            for without, lines in ((True, self.left), (False, self._shown)):
                self._counts.update((line, without, right) for line in lines.get(place, ()))

    def harms(self, lesson: BookLesson, tests: int) -> bool:
        """Return whether rows are right more often without a line, by Fisher's exact test."""
        table = [
            [self._counts[lesson.id, without, right] for right in (True, False)]
            for without in (True, False)
        ]
        return float(stats.fisher_exact(table, "greater").pvalue) <= _FALSE / tests


def _concerns(change: Change, books: Mapping[str, Book], row: Row) -> bool:
    """Return whether a row holds one of a line's two rarest words."""
    vocabulary = Vocabulary.of(lesson.text for lesson in books[change.component].lessons)
    subject = vocabulary.subject(change.lesson.text)
    least = min(sorted(subject.values())[-2:], default=0.0)
    rare = {word for word, weight in subject.items() if weight >= least}
    return not rare.isdisjoint(subject_words(str(row.example.case)))


@contextmanager
def leaving_out(part: float) -> Iterator[None]:
    """Let each training rollout leave out each line in doubt with this probability."""
    tally = _Tally()
    reflect: Any = UpdateLearner._reflect
    propose: Any = Growing.propose

    def rollout(learner: UpdateLearner, plan: UpdatePlan, row: Row) -> Awaitable[Rollout]:
        last = plan.step - 1 - learner.task.settings.staleness
        books = {name: learner.contexts.books.after(name, last) for name in learner.task.components}
        lines = LessonLines(learner.task.settings.artifact, books)
        text = tally.choose(plan, row, books, lines, part)
        return learner.effects.rollout(text, row, EffectPlace("train", plan.step))

    async def reflected(
        learner: UpdateLearner, running: Any, position: int, *more: Any
    ) -> Reflection | None:
        # A row that lacked a line about it teaches nothing that the prompt does not say.
        plan = running.plan
        if tally.left.get((plan.step, plan.rows[position].index)):
            return None
        result: Reflection | None = await reflect(learner, running, position, *more)
        return result

    async def proposed(keeper: Growing, learned: Learned) -> None:
        step = learned.plan.step
        tally.count(learned)
        for component, book in dict(keeper.books.now).items():
            open_lines = [
                lesson
                for lesson in book.lessons
                if lesson.state == "served" and lesson.born >= 0 and not lesson.decided
            ]
            tests = max(1, len(open_lines)) * (step + 1)
            edits = [
                Retire(lesson.id, "rows are right more often without it", _ROWS)
                for lesson in open_lines
                if tally.harms(lesson, tests)
            ]
            keeper.books.edit(component, edits, step)
        await propose(keeper, learned)

    with (
        patch.object(UpdateLearner, "_rollout", rollout),
        patch.object(UpdateLearner, "_reflect", reflected),
        patch.object(Growing, "propose", proposed),
    ):
        yield
