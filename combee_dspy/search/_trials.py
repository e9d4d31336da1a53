"""Texts tried on single validation rows, and the search for the line that spoils them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from combee_dspy.aggregators import together
from combee_dspy.lessons import BookEdit, Retire, lesson_id, nearest, read_section, write_section
from combee_dspy.reflections import texts_in
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Place
from combee_dspy.search._effects import VALIDATION, Effects
from combee_dspy.search._pool import Pool, Scores

__all__ = ["BLAMED", "Trials", "blame", "halved"]

T = TypeVar("T")

BLAMED = 16
"""Rollouts that the search for lines which spoil rows may take in one update."""

_LOST_ROWS = 4
# Rows on which a line that is to leave may not be missed.
_MISSED = 2


@dataclass(eq=False)
class Trials:
    """Runs texts on single validation rows, as long as a number of rollouts lasts.

    Who asks at once asks in a fixed order, so that the same ones are left without.

    Attributes:
        step: The update that the rollouts are counted for.
        left: Rollouts that may still be taken.
    """

    effects: Effects
    pool: Pool
    step: int
    left: int

    async def score(self, text: Candidate, index: int) -> float:
        """Return the score of a text on a validation row; NaN, which is better than nothing, once none is left."""
        if self.left < 1:
            return float("nan")
        self.left -= 1
        row = self.pool.validation[index]
        rollout = await self.effects.rollout(text, row, Place("proof", self.step), lane=VALIDATION)
        return rollout.score

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
    text: str


async def blame(
    trials: Trials, books: Books, old: Candidate, before: Scores, new: Candidate, after: Scores
) -> list[tuple[str, BookEdit]]:
    """Return edits, by component, that retire the lines to blame for validation rows that a new text has lost.

    Lines arrive in groups. A row that is lost tells which of them harms it: it is searched by halves of the lines that
    the old text lacks, which takes about 2 · log2 of their number in rollouts. A line leaves where more rows are right
    without it than are wrong without it, among those that are nearest to it. One that several examples teach leaves
    where it spoils two rows at least, since a single row may turn by chance.
    """
    added = [
        _Line(component, line) for component in books.now for line in _added(old.texts[component], new.texts[component])
    ]
    lost = [index for index, score in sorted(after.items()) if before.get(index, score) > score]
    spoilt: dict[_Line, list[int]] = {}
    for index in lost[:_LOST_ROWS] if added else ():
        culprit = await _culprit(trials, new, index, before[index], list(spoilt), added)
        if culprit is not None:
            spoilt.setdefault(culprit, []).append(index)
    edits: list[tuple[str, BookEdit]] = []
    for line, rows in spoilt.items():
        held = books.known(line.component, trials.step).find(lesson_id(line.text))
        if held is None or held.born < 0 or (held.support > 1 and len(rows) < 2):
            continue
        if len(rows) > await _missed(trials, new, line, after):
            text = f"{len(rows)} validation rows were lost to it in update {trials.step} and are right without it"
            edits.append((line.component, Retire(held.id, text)))
    return edits


async def _culprit(
    trials: Trials, new: Candidate, index: int, score: float, known: Sequence[_Line], added: Sequence[_Line]
) -> _Line | None:
    """Return the line without which a row has its score again: one that is known, else one found by halves."""

    async def is_mended(gone: Iterable[_Line]) -> bool:
        return await trials.score(_without(new, gone), index) >= score

    mended = await together(is_mended([line]) for line in known)
    if any(mended):
        return known[mended.index(True)]
    return await halved([line for line in added if line not in known], is_mended)


async def _missed(trials: Trials, new: Candidate, line: _Line, after: Scores) -> int:
    """Return how many rows that are nearest to a line get worse without it."""
    right = [index for index in sorted(after) if after[index] >= max(after.values())]
    near = nearest(line.text, [trials.inputs(index) for index in right], _MISSED)
    scores = await together(trials.score(_without(new, [line]), right[place]) for place in near)
    return sum(score < after[right[place]] for place, score in zip(near, scores, strict=True))


async def halved(suspects: Sequence[T], is_mended: Callable[[Iterable[T]], Coroutine[Any, Any, bool]]) -> T | None:
    """Return the suspect whose change mends a row; ``None`` where no single one does. Both halves are tried at once."""
    suspects = list(suspects)
    if len(suspects) == 1:
        return suspects[0] if await is_mended(suspects) else None
    while len(suspects) > 1:
        halves = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
        mended = await together(map(is_mended, halves))
        if not any(mended):
            return None  # what is in both halves spoils it, or nothing does
        suspects = halves[mended.index(True)]
    return suspects[0] if suspects else None


def _added(before: str, after: str) -> list[str]:
    """Return the lines of a section that an earlier text lacks."""
    old = set(read_section(before)[1])
    return [line for line in read_section(after)[1] if line not in old]


def _without(text: Candidate, lines: Iterable[_Line]) -> Candidate:
    """Return a candidate without some lines of its sections."""
    gone = set(lines)
    texts: dict[str, str] = {}
    for component in {line.component for line in gone}:
        own, section = read_section(text.texts[component])
        texts[component] = write_section(own, [line for line in section if _Line(component, line) not in gone])
    return text.edited(texts)
