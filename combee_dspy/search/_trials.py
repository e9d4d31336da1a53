"""Runs texts on validation rows, within an allowance of rollouts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from combee_dspy.artifacts import Artifact
from combee_dspy.evaluation import paired_difference
from combee_dspy.lessons import LessonEffect, nearest
from combee_dspy.reflections import texts_in
from combee_dspy.search._candidates import VALIDATION, Candidate, EffectPlace, Scores
from combee_dspy.search._changes import Change
from combee_dspy.search._pool import CandidatePool, Draws, mean_scores


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
        row, place = self.pool.validation[index], EffectPlace("proof", self.step)
        rollout = await self.pool.effects.rollout(text, row, place, lane=VALIDATION)
        return rollout.score

    async def validate(self, text: Candidate, rows: Iterable[int]) -> Draws | None:
        """Return all draws of a text on some rows; ``None`` where too few rollouts are left."""
        validation = [self.pool.validation[index] for index in rows]
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
        example = self.pool.effects.texts.example(self.pool.validation[index].example)
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
