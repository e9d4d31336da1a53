"""Edits of a book, as frozen records: what readers of numbered lessons, tests and users may say about them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BookEdit", "Contradict", "Judge", "Narrow", "Remove", "Restore", "Retire", "Unite"]


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
    """A lesson leaves the prompt, for a reason that is no vote: a test, or that it says nothing."""

    lesson: str
    reason: str


@dataclass(frozen=True, slots=True)
class Restore:
    """A lesson is served, for a reason that is no vote."""

    lesson: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A user removes a lesson. It never returns, in other words neither."""

    lesson: str


@dataclass(frozen=True, slots=True)
class Judge:
    """A lesson that was shown helped with some examples and harmed others. One on both sides tells nothing."""

    lesson: str
    helped: tuple[str, ...] = ()
    harmed: tuple[str, ...] = ()


BookEdit = Unite | Contradict | Narrow | Retire | Restore | Remove | Judge
"""An edit names lessons by their ids (see :func:`combee_dspy.lessons.lesson_id`)."""
