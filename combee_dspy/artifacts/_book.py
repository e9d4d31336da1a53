"""A playbook's content: sections of bullets with stable ids and counters. Pure and frozen."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import normalised

__all__ = ["SECTIONS", "Book", "Bullet", "own_id"]

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

    Raises:
        ArgumentValueError: The id has another form.
    """

    id: str
    section: str
    content: str
    helpful: int = 0
    harmful: int = 0

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            remedy = "Use up to 64 characters without spaces and brackets."
            raise ArgumentValueError("bullet.id", self.id, "is no bullet's id", remedy)

    @property
    def value(self) -> int:
        """Helpful minus harmful."""
        return self.helpful - self.harmful


@dataclass(frozen=True, slots=True)
class Book:
    """Sections of bullets, in order: by section, and in each those that harm more than they help last.

    Attributes:
        bullets: The bullets. They may be given in any order, which is kept within a section.
        sections: At least one name, each once: one line of text without spaces at its ends.

    Raises:
        ArgumentValueError: There is no section, a name has another form, an id stands twice, or a
            bullet stands in no section.
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
            raise ArgumentValueError("bullets", ids, "share an id", "Give each bullet an id of its own.")
        rank = {name: number for number, name in enumerate(self.sections)}
        missing = sorted({bullet.section for bullet in self.bullets} - set(rank))
        if missing:
            raise ArgumentValueError("bullets", missing, "stand in sections that are not named", "Name them.")
        ordered = sorted(self.bullets, key=lambda one: (rank[one.section], one.value < 0))
        object.__setattr__(self, "bullets", tuple(ordered))

    def get(self, bullet_id: str) -> Bullet | None:
        """Return the bullet of this id, if there is one."""
        return next((bullet for bullet in self.bullets if bullet.id == bullet_id), None)

    def counted(self, helpful: Mapping[str, int], harmful: Mapping[str, int]) -> Book:
        """Return the book with more on its bullets' counters. Ids that it does not hold change nothing."""
        counted = (
            replace(
                bullet,
                helpful=bullet.helpful + helpful.get(bullet.id, 0),
                harmful=bullet.harmful + harmful.get(bullet.id, 0),
            )
            for bullet in self.bullets
        )
        return Book(tuple(counted), self.sections)


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
