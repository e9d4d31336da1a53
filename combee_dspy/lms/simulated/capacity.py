"""How much of a crowded prompt the simulated model takes in and writes down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

__all__ = ["CapacityModel"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """Context overload as an explicit law of one writing call.

    Two limits, alone or together. *Attention*: of the N items of a prompt
    (reflection records and lesson lines), min(N, attended_items) are read, a
    uniform sample without replacement, so beyond the limit an item is read
    with probability attended_items / N, whatever its place in the prompt. A
    copy of an item is an item of its own. *Writing*: at most written_lessons
    distinct lessons are written in one answer; lessons of an instruction that
    is being rewritten are written first and count, and a uniform sample of
    the new ones fills what is left.

    The two laws and the limit of 12 are assumptions stated here, not
    measurements of a model. They stand for what the paper reports: with many
    reflections in one prompt, fewer of them survive. They belong to the
    service alone: nothing outside it may read them.

    Args:
        attended_items: Items read in one call, at least 1; None for no limit.
        written_lessons: Lessons written in one call, at least 1; None (default) for no limit.
        lesson_miss_rate: Probability, in [0, 1], that an item is read and its lesson is still not seen.

    Raises:
        ArgumentValueError: A limit is below 1 or the rate is outside [0, 1].
    """

    attended_items: int | None = 12
    written_lessons: int | None = None
    lesson_miss_rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("attended_items", "written_lessons"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentValueError(name, value, "must be at least 1 or None", "None means no limit.")
        if not 0 <= self.lesson_miss_rate <= 1:
            raise ArgumentValueError(
                "lesson_miss_rate", self.lesson_miss_rate, "must be within [0, 1]", "0 means that no lesson is missed."
            )

    @classmethod
    def attention(cls, items: int = 12) -> CapacityModel:
        """Return the law with the attention limit alone."""
        return cls(attended_items=items, written_lessons=None)

    @classmethod
    def writing(cls, lessons: int = 12) -> CapacityModel:
        """Return the law with the writing limit alone."""
        return cls(attended_items=None, written_lessons=lessons)

    @classmethod
    def unlimited(cls) -> CapacityModel:
        """Return the law without any limit."""
        return cls(attended_items=None, written_lessons=None)

    def crowded(self, items: int) -> bool:
        """Whether a prompt with this many items has more than can be read."""
        return self.attended_items is not None and items > self.attended_items

    def attend(self, items: Sequence[T], seed: int, *place: str | int) -> tuple[T, ...]:
        """Return the items that are read, in their order.

        Args:
            items: The items of the prompt, in order of appearance.
            seed: The service's seed.
            *place: What identifies the call.
        """
        kept = _sample(items, self.attended_items, seed, "attend", *place)
        if self.lesson_miss_rate == 0:
            return kept
        stream = derive(seed, "miss", *place)
        return tuple(item for item in kept if stream.random() >= self.lesson_miss_rate)

    def write(self, old: Sequence[T], new: Sequence[T], seed: int, *place: str | int) -> tuple[T, ...]:
        """Return the lessons that are written, old ones first.

        Args:
            old: Distinct lessons of the instruction that is rewritten; empty when none is.
            new: Distinct lessons that are not among ``old``.
            seed: The service's seed.
            *place: What identifies the call.
        """
        first = _sample(old, self.written_lessons, seed, "write-old", *place)
        room = None if self.written_lessons is None else self.written_lessons - len(first)
        return first + _sample(new, room, seed, "write-new", *place)


def _sample(items: Sequence[T], limit: int | None, seed: int, *place: str | int) -> tuple[T, ...]:
    if limit is None or len(items) <= limit:
        return tuple(items)
    chosen = derive(seed, *place).sample(range(len(items)), limit)
    return tuple(items[index] for index in sorted(chosen))
