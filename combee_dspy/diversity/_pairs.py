"""Pairs of candidates that a threshold must tell apart: grown prompts, reworded or truly different."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from combee_dspy.diversity._base import Vectors
from combee_dspy.diversity._rewording import reworded
from combee_dspy.streams import derive

__all__ = ["KINDS", "Pair", "pairs_of"]

_HEADER = "Lessons learned:"
_GROWN = (0, 3, 8, 20, 40)
_TOUCHED = 0.3
# Two siblings differ in four lessons each at most.
_DIFFERING = 8
# One lesson more is the commonest edit and the hardest to tell.
_SIZES = (1, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two candidates' texts, and whether the second one is news.

    Attributes:
        kind: How it was made: a name out of :data:`KINDS`.
        distinct: Whether the second says something that the first does not, or leaves something out.
        first: The candidate that is there.
        second: The candidate that is drawn.
        grown: Lessons that both had before they parted.
    """

    kind: str
    distinct: bool
    first: str
    second: str
    grown: int


def _prompt(instruction: str, lessons: Sequence[str]) -> str:
    return "\n".join([instruction, "", _HEADER, *(f"- {lesson}" for lesson in lessons)]) if lessons else instruction


@dataclass(frozen=True, slots=True)
class _Draw:
    """One instruction, the lessons that both candidates hold, and those that neither holds yet."""

    instruction: str
    shared: tuple[str, ...]
    fresh: tuple[str, ...]
    stream: random.Random

    def some(self) -> int:
        return self.stream.choice(_SIZES)


def _added(draw: _Draw) -> tuple[str, str]:
    new = draw.fresh[: draw.some()]
    return _prompt(draw.instruction, draw.shared), _prompt(draw.instruction, (*draw.shared, *new))


def _siblings(draw: _Draw) -> tuple[str, str]:
    one = draw.fresh[: draw.some()]
    other = draw.fresh[len(one) : len(one) + draw.some()]
    return _prompt(draw.instruction, (*draw.shared, *one)), _prompt(draw.instruction, (*draw.shared, *other))


def _removed(draw: _Draw) -> tuple[str, str]:
    gone = draw.fresh[: draw.some()]
    whole = [*draw.shared, *gone]
    draw.stream.shuffle(whole)
    left = [lesson for lesson in whole if lesson not in gone]
    return _prompt(draw.instruction, whole), _prompt(draw.instruction, left)


def _mixed(draw: _Draw) -> tuple[str, str]:
    touched = [reworded(lesson, draw.stream) if draw.stream.random() < _TOUCHED else lesson for lesson in draw.shared]
    new = draw.fresh[: draw.some()]
    return _prompt(draw.instruction, draw.shared), _prompt(draw.instruction, (*touched, *new))


def _same_edit(draw: _Draw) -> tuple[str, str]:
    new = draw.fresh[: draw.some()]
    again = [reworded(lesson, draw.stream) for lesson in new]
    return _prompt(draw.instruction, (*draw.shared, *new)), _prompt(draw.instruction, (*draw.shared, *again))


def _touched(draw: _Draw) -> tuple[str, str]:
    lessons = list(draw.shared) or list(draw.fresh[: draw.some()])
    chosen = draw.stream.sample(range(len(lessons)), min(len(lessons), draw.some()))
    again = [reworded(lesson, draw.stream) if number in chosen else lesson for number, lesson in enumerate(lessons)]
    return _prompt(draw.instruction, lessons), _prompt(draw.instruction, again)


def _moved(draw: _Draw) -> tuple[str, str]:
    lessons = [*draw.shared, *draw.fresh[: 1 + draw.some()]]
    again = list(lessons)
    draw.stream.shuffle(again)
    return _prompt(draw.instruction, lessons), _prompt(reworded(draw.instruction, draw.stream), again)


def _restated(draw: _Draw) -> tuple[str, str]:
    lessons = list(draw.shared) or list(draw.fresh[: draw.some()])
    again = reworded(draw.stream.choice(lessons), draw.stream)
    return _prompt(draw.instruction, lessons), _prompt(draw.instruction, (*lessons, again))


KINDS: Mapping[str, tuple[bool, Callable[[_Draw], tuple[str, str]]]] = {
    "new lessons added": (True, _added),
    "other lessons added": (True, _siblings),
    "lessons removed": (True, _removed),
    "new lessons among rewordings": (True, _mixed),
    "the same edit reworded": (False, _same_edit),
    "some lessons reworded": (False, _touched),
    "lessons in another order": (False, _moved),
    "a lesson said again": (False, _restated),
}
"""How pairs are made: whether they are distinct, and the maker."""


def pairs_of(
    instructions: Sequence[str], lessons: Sequence[str], alike: Vectors, *, seed: int, each: int
) -> tuple[Pair, ...]:
    """Return pairs of grown prompts of every kind.

    Both candidates share an instruction and 0 to 40 lessons, as far as there are
    so many; one to four lessons are what differs. In every second pair the
    lessons that differ are those most alike among all, as a proposer writes
    them that has one task to learn: the hard case for any embedder.

    Args:
        instructions: Starting instructions, at least one.
        lessons: Different lessons, at least nine.
        alike: Similarity of each two lessons, shape (lessons, lessons).
        seed: Seed of every draw.
        each: Pairs of each kind.
    """
    found = []
    for kind, (distinct, make) in KINDS.items():
        for number in range(each):
            stream = derive(seed, "similarity pairs", kind, number)
            grown = min(_GROWN[number // 2 % len(_GROWN)], len(lessons) - _DIFFERING)
            drawn = stream.sample(range(len(lessons)), len(lessons))
            shared, fresh = drawn[:grown], drawn[grown:]
            if number % 2:
                fresh = _by_likeness(fresh, shared, alike)
            draw = _Draw(
                stream.choice(list(instructions)),
                tuple(lessons[index] for index in shared),
                tuple(lessons[index] for index in fresh),
                stream,
            )
            found.append(Pair(kind, distinct, *make(draw), grown))
    return tuple(found)


def _by_likeness(fresh: Sequence[int], shared: Sequence[int], alike: Vectors) -> list[int]:
    """Return indices with those first that are most like the shared ones, or like the one before."""
    left = list(fresh)
    ordered = [] if shared else [left.pop(0)]
    nearest = alike[left][:, [*shared, *ordered]].max(axis=1)
    while len(ordered) < _DIFFERING and left:
        chosen = int(nearest.argmax())
        ordered.append(left.pop(chosen))
        nearest = np.maximum(np.delete(nearest, chosen), alike[left, ordered[-1]])
    return [*ordered, *left]
