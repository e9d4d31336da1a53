"""Texts tried on single validation rows, and the search for the line that spoils them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from combee_dspy.aggregators import together
from combee_dspy.artifacts import Artifact
from combee_dspy.evaluation import paired_difference
from combee_dspy.lessons import Book, BookEdit, LessonEffect, Retire, State, nearest
from combee_dspy.reflections import texts_in
from combee_dspy.search._candidates import Candidate, EffectPlace, Scores
from combee_dspy.search._effects import VALIDATION, Effects
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._showing import Showing

__all__ = ["BLAMED", "Trials", "another_order", "blame", "halved", "measured"]

T = TypeVar("T")

BLAMED = 16
"""Rollouts that the search for lines which spoil rows may take in one update."""

_LOST_ROWS = 4
# Rows on which a line that is to leave may not be missed.
_MISSED = 2
# Lines that may be to blame together: two wordings of one lesson, or three.
_TOGETHER = 3


@dataclass(eq=False)
class Trials:
    """Runs texts on single validation rows, as long as a number of rollouts lasts.

    Who asks at once asks in a fixed order, so that the same ones are left without.

    Attributes:
        step: The update that the rollouts are counted for.
        left: Rollouts that may still be taken.
    """

    effects: Effects
    pool: CandidatePool
    step: int
    left: int
    _scores: dict[tuple[str, int], float] = field(default_factory=dict, init=False)

    async def score(self, text: Candidate, index: int) -> float:
        """Return the score of a text on a validation row; NaN, which is better than nothing, once
        none is left.
        """
        if self.left < 1:
            return float("nan")
        self.left -= 1
        row = self.pool.validation[index]
        rollout = await self.effects.rollout(
            text, row, EffectPlace("proof", self.step), lane=VALIDATION
        )
        self._scores[text.id, index] = rollout.score
        return rollout.score

    def compared(self, text: Candidate, scores: Scores) -> tuple[list[float], list[float]]:
        """Return the scores of a text on the rows where it was tried, and those that another text
        has there.
        """
        rows = [index for key, index in self._scores if key == text.id and index in scores]
        return [self._scores[text.id, index] for index in rows], [scores[index] for index in rows]

    def apart(self, rollouts: int) -> Trials:
        """Set so many rollouts apart, as far as there are, for a search beside others."""
        own = Trials(self.effects, self.pool, self.step, min(rollouts, self.left))
        self.left -= own.left
        return own

    def inputs(self, index: int) -> str:
        """Return the texts of a row's inputs."""
        example = self.effects.texts.example(self.pool.validation[index].example)
        return " ".join(texts_in(example.inputs().toDict()))


@dataclass(frozen=True, slots=True)
class _Line:
    component: str
    lesson: str
    text: str


async def blame(
    trials: Trials,
    showing: Showing,
    books: Mapping[str, Book],
    old: Candidate,
    before: Scores,
) -> list[tuple[str, BookEdit]]:
    """Return edits, by component, that retire the lines to blame for validation rows that a new
    text has lost.

    Lines arrive in groups. A row that is lost tells which of them harms it: it is searched by
    halves of the lines that the old text lacks, which takes about 2 · log2 of their number in
    rollouts. A row that comes back in another order of the same lines was lost by chance, and
    blames none. A line leaves where more rows are right without it than are wrong without it, among
    those that are nearest to it. One that several examples teach leaves where it spoils two rows at
    least, since a single row may turn by chance.
    """
    artifact, new, after = showing.artifact, showing.text, showing.scores
    added = [
        line
        for component in books
        for line in _added(artifact, component, old.texts[component], new.texts[component])
    ]
    lost = [index for index, score in sorted(after.items()) if before.get(index, score) > score]
    spoilt: dict[tuple[_Line, ...], list[int]] = {}
    # The search leaves rollouts for the rows on which a line may not be missed.
    checks = min(_MISSED, trials.left)
    trials.left -= checks
    for index in lost[:_LOST_ROWS] if added else ():
        lines = await _culprits(trials, showing, index, before[index], list(spoilt), added)
        if not lines:
            continue
        moved = new
        for line in lines:
            text = another_order(artifact, moved.texts[line.component], line.lesson)
            moved = moved.edited({line.component: text})
        if moved.id == new.id or await trials.score(moved, index) < before[index]:
            spoilt.setdefault(lines, []).append(index)
    trials.left += checks
    edits: list[tuple[str, BookEdit]] = []
    for lines, rows in spoilt.items():
        held = [books[line.component].find(line.lesson) for line in lines]
        lessons = [lesson for lesson in held if lesson is not None and lesson.born >= 0]
        taught = max((lesson.support for lesson in lessons), default=0)
        if len(lessons) < len(lines) or (taught > 1 and len(rows) < 2):
            continue
        missed = await _missed(trials, showing, lines)
        if len(rows) > missed:
            reason = (
                f"{len(rows)} validation rows were lost to it in update {trials.step} and are right"
                " without it"
            )
            effect = measured(*trials.compared(_without(artifact, new, lines), after))
            edits += [
                (
                    line.component,
                    Retire(
                        lesson.id, reason, len(rows) - missed, effect if len(lines) == 1 else None
                    ),
                )
                for line, lesson in zip(lines, lessons, strict=True)
            ]
    return edits


def measured(without: Sequence[float], served: Sequence[float]) -> LessonEffect | None:
    """Return the effect of a line on rows that were run without it and with it; ``None`` without
    such rows.
    """
    pairs = [both for both in zip(without, served, strict=True) if all(map(math.isfinite, both))]
    if not pairs:
        return None
    pair = paired_difference(*zip(*pairs, strict=True))
    return LessonEffect(pair.difference, pair.low, pair.high, pair.n)


async def _culprits(
    trials: Trials,
    showing: Showing,
    index: int,
    score: float,
    suspects: Sequence[tuple[_Line, ...]],
    added: Sequence[_Line],
) -> tuple[_Line, ...]:
    """Return the lines without which a row has its score again: known ones, else those that halves
    of what was added lead to.
    """

    async def is_mended(gone: Iterable[_Line]) -> bool:
        text = _without(showing.artifact, showing.text, gone)
        return await trials.score(text, index) >= score

    mended = await together(map(is_mended, suspects))
    if any(mended):
        return suspects[mended.index(True)]
    gone = {line for lines in suspects for line in lines}
    others = await asyncio.to_thread(
        lambda: [
            line
            for line in added
            if line not in gone and showing.is_shown(line.component, line.lesson, index)
        ]
    )
    return tuple(await halved(others, is_mended))


async def _missed(trials: Trials, showing: Showing, lines: Sequence[_Line]) -> int:
    """Return how many rows that are nearest to lines get worse without them."""
    without, after = _without(showing.artifact, showing.text, lines), showing.scores
    best = [index for index in sorted(after) if after[index] >= max(after.values())]
    right = await asyncio.to_thread(
        lambda: [index for index in best if showing.differs(without, index)]
    )
    words = " ".join(line.text for line in lines)
    near = nearest(words, [trials.inputs(index) for index in right], _MISSED)
    scores = await together(trials.score(without, right[place]) for place in near)
    # A row that was not tried, for lack of rollouts, speaks for the lines.
    return sum(not score >= after[right[place]] for place, score in zip(near, scores, strict=True))


async def halved(
    suspects: Sequence[T], is_mended: Callable[[Iterable[T]], Coroutine[Any, Any, bool]]
) -> list[T]:
    """Return the fewest suspects whose change mends a row; none where they are too many, or all of
    them together do not mend it.

    Two lines that say the same hide each other: a row stays spoilt until both are gone.
    """
    if not suspects or not await is_mended(suspects):
        return []
    culprits = await _narrowed(suspects, [], is_mended)
    if len(culprits) == 1:
        return culprits
    return culprits if len(culprits) <= _TOGETHER and await is_mended(culprits) else []


async def _narrowed(
    suspects: Sequence[T],
    changed: Sequence[T],
    is_mended: Callable[[Iterable[T]], Coroutine[Any, Any, bool]],
) -> list[T]:
    """Return the suspects that must change beside others, where all of them together mend a row.

    Both halves are tried at once. Where neither is enough, each holds a part.
    """
    if len(suspects) < 2:
        return list(suspects)
    first, second = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
    mended = await together(is_mended([*changed, *half]) for half in (first, second))
    if any(mended):
        return await _narrowed(first if mended[0] else second, changed, is_mended)
    part = await _narrowed(second, [*changed, *first], is_mended)
    return [*await _narrowed(first, [*changed, *part], is_mended), *part]


def another_order(artifact: Artifact, text: str, lesson: str = "") -> str:
    """Return a text with the same lessons: one of them, else the last, comes first; the first one
    last.
    """
    lessons = artifact.read(text).lessons
    if not lessons:
        return text
    ids = [held.id for held in lessons]
    place = ids.index(lesson) if lesson in ids else len(ids) - 1
    others = lessons[:place] + lessons[place + 1 :]
    moved = (*others, lessons[place]) if place == 0 else (lessons[place], *others)
    return artifact.serve(text, Book(moved))


def _added(artifact: Artifact, component: str, before: str, after: str) -> list[_Line]:
    """Return the lessons of a text that an earlier one lacks."""
    old = artifact.read(before)
    return [
        _Line(component, lesson.id, lesson.text)
        for lesson in artifact.read(after).lessons
        if old.find(lesson.id) is None
    ]


def _without(artifact: Artifact, text: Candidate, lines: Iterable[_Line]) -> Candidate:
    """Return a candidate whose texts lack some of their lessons."""
    gone: dict[str, dict[str, tuple[State, str]]] = {}
    for line in lines:
        gone.setdefault(line.component, {})[line.lesson] = ("retired", "")
    return text.edited(
        {
            component: artifact.serve(
                text.texts[component], artifact.read(text.texts[component]).with_states(states)
            )
            for component, states in gone.items()
        }
    )
