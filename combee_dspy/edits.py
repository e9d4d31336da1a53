"""Edits of a book, as frozen records: what readers of numbered lessons, tests and users may say
about them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BookEdit",
    "Contradict",
    "Credit",
    "LessonEffect",
    "Narrow",
    "Remove",
    "Restore",
    "Retire",
    "Unite",
]


@dataclass(frozen=True, slots=True)
class LessonEffect:
    """What serving a lesson does to the score, on the rows that were run with it and without it.

    Attributes:
        difference: Mean of the paired differences, with it minus without it: below 0 where it
            harms.
        low: Lower end of its 95 % interval.
        high: Upper end.
        rows: Rows that were run both ways. A search for harm picks rows that fail, so they are no
            sample of all rows.
    """

    difference: float
    low: float
    high: float
    rows: int

    def __str__(self) -> str:
        """Return it in words."""
        moved = f"{self.difference:+.2f} ({self.low:+.2f} to {self.high:+.2f})"
        return f"serving it moves the score by {moved} on {self.rows} rows"


@dataclass(frozen=True, slots=True)
class Unite:
    """These lessons say the same. The first has the clearest wording."""

    lessons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contradict:
    """These lessons cannot all be right: one lesson for each opinion."""

    lessons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Narrow:
    """One lesson is an exception to another, its rule. Both may be right."""

    exception: str
    rule: str


@dataclass(frozen=True, slots=True)
class Retire:
    """A lesson leaves the prompt, for a reason that is no vote: a test, or that it says nothing.

    Attributes:
        lesson: Id of the lesson.
        reason: Why, in a sentence.
        rows: What the decision weighs: as many examples as rows show it. Examples that are cited
            later may outweigh it.
        effect: What a test measured.
    """

    lesson: str
    reason: str
    rows: int = 1
    effect: LessonEffect | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """A lesson is served, for a reason that is no vote. Attributes as of :class:`Retire`."""

    lesson: str
    reason: str
    rows: int = 1
    effect: LessonEffect | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """A user removes a lesson. It never returns, in other words neither."""

    lesson: str


@dataclass(frozen=True, slots=True)
class Credit:
    """A lesson that was shown helped with some examples and harmed others. One on both sides tells
    nothing.
    """

    lesson: str
    helped: tuple[str, ...] = ()
    harmed: tuple[str, ...] = ()


BookEdit = Unite | Contradict | Narrow | Retire | Restore | Remove | Credit
"""An edit names lessons by their ids (see :func:`combee_dspy.lessons.lesson_id`)."""
