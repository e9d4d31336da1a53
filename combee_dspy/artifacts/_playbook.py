"""The playbook: sections of bullets with stable ids and counters. Pure and frozen."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.reflections import normalised

__all__ = ["SECTIONS", "Bullet", "Playbook", "ordered", "own_id"]

SECTIONS = ("STRATEGIES", "FORMULAS AND DEFINITIONS", "FORMATS", "COMMON MISTAKES", "OTHER")
"""Sections of a playbook that nobody has named any for. The last one takes what fits nowhere else."""

_ID = re.compile(r"[^\s\[\]]{1,64}")
_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Bullet:
    """One piece of advice.

    Attributes:
        id: Names it for good: no space, no bracket, at most 64 characters.
        section: The section it stands in.
        content: What it says. Any text in any script, over several lines too.
        helpful: How often it was judged to have helped.
        harmful: How often it was judged to have harmed.
        place: Its rank among the bullets that were there before anything was learned;
            ``None`` for learned ones, which stand behind them. No part of its identity.

    Raises:
        ArgumentValueError: The id has another form, or a counter is negative.
    """

    id: str
    section: str
    content: str
    helpful: int = 0
    harmful: int = 0
    place: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            remedy = "Use up to 64 characters without spaces and brackets."
            raise ArgumentValueError("bullet.id", self.id, "is no bullet's id", remedy)
        if self.helpful < 0 or self.harmful < 0:
            raise ArgumentValueError("bullet", (self.helpful, self.harmful), "counts below 0", "Count from 0.")

    @property
    def value(self) -> int:
        """Helpful minus harmful."""
        return self.helpful - self.harmful


@dataclass(frozen=True, slots=True)
class Playbook:
    """Sections of bullets.

    Attributes:
        bullets: Section by section in the order of ``sections``.
        sections: At least one name, each once: one line of text without spaces at its ends.

    Raises:
        ArgumentValueError: There is no section, a name has another form, an id stands twice, or a
            bullet stands in no section or out of the order of the sections.
    """

    bullets: tuple[Bullet, ...] = ()
    sections: tuple[str, ...] = SECTIONS

    def __post_init__(self) -> None:
        remedy = "Give names of one line, each once."
        if not self.sections or len(set(self.sections)) != len(self.sections):
            raise ArgumentValueError("sections", self.sections, "is empty, or names one twice", remedy)
        for name in self.sections:
            if not name or name != name.strip() or "\n" in name:
                raise ArgumentValueError("sections", name, "is no section's name", remedy)
        ids = [bullet.id for bullet in self.bullets]
        if len(set(ids)) != len(ids):
            twice = sorted({one for one in ids if ids.count(one) > 1})
            raise ArgumentValueError("bullets", twice, "share an id", "Give each bullet an id of its own.")
        rank = {name: number for number, name in enumerate(self.sections)}
        missing = sorted({bullet.section for bullet in self.bullets} - set(rank))
        if missing:
            raise ArgumentValueError("bullets", missing, "stand in sections that are not named", "Name them.")
        ranks = [rank[bullet.section] for bullet in self.bullets]
        if ranks != sorted(ranks):
            raise ArgumentValueError("bullets", ids, "are not in the order of the sections", "Sort them.")

    def __len__(self) -> int:
        return len(self.bullets)

    def get(self, bullet_id: str) -> Bullet | None:
        """Return the bullet of this id, if there is one."""
        return next((bullet for bullet in self.bullets if bullet.id == bullet_id), None)

    def of(self, section: str) -> tuple[Bullet, ...]:
        """Return a section's bullets, in order."""
        return tuple(bullet for bullet in self.bullets if bullet.section == section)

    def with_counts(self, helpful: Mapping[str, int], harmful: Mapping[str, int]) -> Playbook:
        """Return the playbook with more on its counters. Ids that it does not hold change nothing."""
        counted = (
            replace(
                bullet,
                helpful=bullet.helpful + helpful.get(bullet.id, 0),
                harmful=bullet.harmful + harmful.get(bullet.id, 0),
            )
            for bullet in self.bullets
        )
        return ordered(counted, self.sections)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data that :meth:`from_dict` reads back."""
        names = ("id", "section", "content", "helpful", "harmful", "place")
        return {
            "sections": list(self.sections),
            "bullets": [{name: getattr(bullet, name) for name in names} for bullet in self.bullets],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Playbook:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ArgumentTypeError: A value has another type.
            ArgumentValueError: A value cannot be used.
        """
        remedy = "Give what Playbook.to_dict() returns."
        try:
            bullets = tuple(_bullet(row) for row in data["bullets"])
            sections = tuple(_text(name) for name in data["sections"])
        except (KeyError, TypeError) as error:
            raise ArgumentTypeError("playbook", data, f"is no playbook's data: {error}", remedy) from error
        return cls(bullets, sections)


def ordered(bullets: Iterable[Bullet], sections: Sequence[str]) -> Playbook:
    """Return a playbook whose order follows from the bullets alone, not from when each of them came.

    By section; then those that harm more than they help last; then those that were there
    before anything was learned, in their order; then by id.
    """
    rank = {name: number for number, name in enumerate(sections)}

    def key(bullet: Bullet) -> tuple[int, bool, bool, int, str]:
        old = bullet.place is not None
        return (rank[bullet.section], bullet.harmful > bullet.helpful, not old, bullet.place or 0, bullet.id)

    return Playbook(tuple(sorted(bullets, key=key)), tuple(sections))


def own_id(section: str, content: str) -> str:
    """Return the id of a bullet that is added: it follows from what it says, so adding it again adds nothing.

    Args:
        section: Gives the readable part before the dash.
        content: Gives the eight hex digits behind it, whatever its case and punctuation.
    """
    words = [word for word in _SLUG.split(section.casefold()) if word]
    said = normalised(content) or content
    digest = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{words[0][:4] if words else 'note'}-{digest}"


def _bullet(row: Mapping[str, Any]) -> Bullet:
    place = row.get("place")
    if place is not None:
        place = _count(place)
    return Bullet(
        _text(row["id"]),
        _text(row["section"]),
        _text(row["content"]),
        _count(row.get("helpful", 0)),
        _count(row.get("harmful", 0)),
        place,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
