"""Texts that differ in single lessons, and their rollouts on rows, within an allowance."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from combee_dspy.artifacts import Artifact
from combee_dspy.evaluation import paired_difference
from combee_dspy.lessons import (
    Book,
    BookEdit,
    BookLesson,
    LessonEffect,
    Restore,
    Retire,
    State,
    nearest,
)
from combee_dspy.reflections import texts_in
from combee_dspy.search._candidates import VALIDATION, Candidate, EffectPlace, Scores
from combee_dspy.search._pool import CandidatePool, Draws, mean_scores

Allows = Callable[[Candidate, Candidate], bool]
"""Whether guards and the budgets of operators let a text take the place of another."""


@dataclass(frozen=True, slots=True)
class Change:
    """One lesson that is added to a text (``serve``) or taken out, whatever the book says."""

    component: str
    lesson: BookLesson
    serve: bool

    @property
    def place(self) -> tuple[str, str]:
        """The lesson's component and id: many whole lessons take long to compare."""
        return self.component, self.lesson.id

    def edit(self, reason: str, rows: int, effect: LessonEffect | None) -> BookEdit:
        """Return the edit that makes the change in the book."""
        decision = Restore if self.serve else Retire
        return decision(self.lesson.id, reason, rows, effect)


@dataclass(frozen=True, slots=True)
class LessonLines:
    """The lessons of some books as lines of texts. Pure.

    Attributes:
        artifact: Reads the lines of a text, and writes a text with others.
        books: By component.
    """

    artifact: Artifact
    books: Mapping[str, Book]

    def open_changes(self, text: Candidate, *, serve: bool) -> list[Change]:
        """Return the changes of a text that no test and no user has decided yet.

        With ``serve``, lessons that wait and that the text lacks; otherwise served lessons that it
        shows. Only lessons of this run count. What contradicts a line of the user's own is left
        out: it could not be served beside it.
        """
        state: State = "waiting" if serve else "served"
        changes: list[Change] = []
        for component, book in self.books.items():
            own = {lesson.id for lesson in book.lessons if lesson.own}
            lines = {line.id for line in self.artifact.read(text.texts[component]).lessons}
            changes += [
                Change(component, lesson, serve)
                for lesson in book.lessons
                if lesson.state == state
                and lesson.born >= 0
                and not lesson.decided
                and lines.isdisjoint(lesson.wordings) is serve
                and not (serve and own.intersection(lesson.rivals))
            ]
        return changes

    def changed(self, text: Candidate, changes: Iterable[Change]) -> Candidate:
        """Return a text with these changes. The rivals of an added lesson leave it."""
        changes = tuple(changes)
        wanted: dict[str, dict[str, bool]] = {change.component: {} for change in changes}
        for change in changes:
            rivals = change.lesson.rivals if change.serve else ()
            wanted[change.component].update(dict.fromkeys(rivals, False))
        for change in changes:
            wanted[change.component][change.lesson.id] = change.serve
        return self._with(text, wanted)

    def follow(self, text: Candidate, before: Mapping[str, Book]) -> Candidate:
        """Return a text with what was decided of lessons since the books were as ``before``.

        A lesson that was united with a retired one leaves with it.
        """
        wanted: dict[str, dict[str, bool]] = {}
        for component, book in before.items():
            served = {wording for lesson in book.served for wording in lesson.wordings}
            wanted[component] = {
                lesson.id: lesson.state == "served"
                for lesson in self.books[component].lessons
                if (lesson.state == "served") is served.isdisjoint(lesson.wordings)
            }
        return self._with(text, wanted)

    def _with(self, text: Candidate, wanted: Mapping[str, Mapping[str, bool]]) -> Candidate:
        """Return a text that serves some lessons and not others, by component and id.

        All other lines stay. Of several lines for one lesson the first stays.
        """
        texts: dict[str, str] = {}
        for component, serves in wanted.items():
            old = text.texts[component]
            lines = self.artifact.read(old)
            place = {line.id: number for number, line in enumerate(lines.lessons)}
            gone: dict[str, tuple[State, str]] = {}
            more: list[BookLesson] = []
            for lesson in self.books[component].lessons:
                ids = sorted(place.keys() & set(lesson.wordings), key=place.__getitem__)
                is_served = serves.get(lesson.id, bool(ids))
                gone |= dict.fromkeys(ids[1:] if is_served else ids, ("retired", ""))
                if is_served and not ids:
                    more.append(replace(lesson, state="served"))
            if gone or more:
                book = Book((*lines.with_states(gone).lessons, *more))
                texts[component] = self.artifact.serve(old, book)
        return text.edited(texts)


@dataclass(eq=False)
class Trials:
    """Runs texts on validation rows, as long as an allowance lasts.

    Whoever asks at once asks in a fixed order, so that the same questions go without an answer.

    Attributes:
        step: The update that the rollouts are counted for.
        left: Rollouts that may still be taken.
    """

    pool: CandidatePool
    step: int
    left: int
    _asked: set[tuple[str, int]] = field(default_factory=set)

    async def score(self, text: Candidate, index: int) -> float:
        """Return a text's score on one row; NaN, which is above nothing, once none is left.

        Asking again is free, also while the rollout is under way.
        """
        if (text.id, index) not in self._asked:
            if self.left < 1:
                return math.nan
            self.left -= 1
            self._asked.add((text.id, index))
        row, place = self.pool.all_rows[index], EffectPlace("proof", self.step)
        rollout = await self.pool.effects.rollout(text, row, place, lane=VALIDATION)
        return rollout.score

    async def validate(self, text: Candidate, rows: Iterable[int]) -> Draws | None:
        """Return all draws of a text on some rows; ``None`` where too few rollouts are left."""
        validation = [self.pool.all_rows[index] for index in rows]
        cost = len(validation) * self.pool.draws
        if cost > self.left:
            return None
        self.left -= cost
        return await self.pool.validate(text, validation, self.step)

    def apart(self, rollouts: int) -> Trials:
        """Set rollouts apart, as far as there are, for a search that runs beside others.

        They share what was asked. So each must ask of rows of its own: else who pays for a rollout
        would depend on who asks first.
        """
        rollouts = max(0, min(rollouts, self.left))
        self.left -= rollouts
        return replace(self, left=rollouts)

    def nearest(self, words: str, rows: Sequence[int], most: int) -> list[int]:
        """Return the rows whose inputs share most words with a text, nearest first."""
        return [rows[place] for place in nearest(words, [self.inputs(row) for row in rows], most)]

    def inputs(self, index: int) -> str:
        """Return the texts of a row's inputs."""
        example = self.pool.effects.texts.example(self.pool.all_rows[index].example)
        return " ".join(texts_in(example.inputs().toDict()))


@dataclass(frozen=True)
class Validated:
    """A text with its rollouts on validation rows, and which lessons each of them reads.

    A lesson proves nothing on a row that does not read it. Looking lessons up may wait for an
    embedding service, so it happens in a thread.
    """

    artifact: Artifact
    text: Candidate
    draws: Draws

    @cached_property
    def scores(self) -> Scores:
        """Mean score by row."""
        return mean_scores(self.draws)

    async def relevant(self, changes: Iterable[Change], index: int) -> list[Change]:
        """Return the changes of lessons that one row reads."""
        return await asyncio.to_thread(
            lambda: [change for change in changes if self._reads(change, index)]
        )

    async def affected(self, other: Candidate) -> list[int]:
        """Return the rows that read something else in another text."""
        return await asyncio.to_thread(
            lambda: [index for index in self.draws if self._differs(other, index)]
        )

    def _reads(self, change: Change, index: int) -> bool:
        lookups = self._lookups(self.text, change.component, index)
        lines = set(change.lesson.wordings)
        return not lookups or any(ids is None or not lines.isdisjoint(ids) for ids in lookups)

    def _differs(self, other: Candidate, index: int) -> bool:
        for component, text in self.text.texts.items():
            if other.texts[component] == text:
                continue
            before, after = (
                self._lookups(version, component, index) for version in (self.text, other)
            )
            # A call that looks nothing up reads the whole text.
            if not before or None in (*before, *after) or before != after:
                return True
        return False

    def _lookups(self, text: Candidate, component: str, index: int) -> list[tuple[str, ...] | None]:
        """Return the ids of the lessons that each call of a row reads; ``None`` for all."""
        calls = [call for draw in self.draws[index] for call in draw.calls if call.is_of(component)]
        return [self.artifact.shows(text.texts[component], call.inputs) for call in calls]


def lesson_effect(without: Sequence[float], served: Sequence[float]) -> LessonEffect | None:
    """Return the effect of a lesson on rows that ran without it and with it; ``None`` for no rows.

    Scores that are not finite are left out.
    """
    pairs = [both for both in zip(without, served, strict=True) if all(map(math.isfinite, both))]
    if not pairs:
        return None
    pair = paired_difference(*zip(*pairs, strict=True))
    return LessonEffect(pair.difference, pair.low, pair.high, pair.n)
