"""Deltas: what a curator asks for, and what code makes of it and of near-duplicates. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from combee_dspy.artifacts._book import Book, Bullet, own_id
from combee_dspy.reflections import NearDuplicates

Op = Literal["ADD", "UPDATE", "MERGE", "DELETE"]

# Of two deltas that want the same bullet, the one that keeps more of it goes first.
_RANK: dict[str, int] = {"MERGE": 0, "UPDATE": 1, "DELETE": 2}


@dataclass(frozen=True, slots=True)
class Delta:
    """One change to a playbook.

    Attributes:
        op: ``ADD`` takes a section and a content, ``UPDATE`` one id and a content, ``MERGE`` two ids or more and a
            content, ``DELETE`` one id.
        ids: The bullets it is about, ascending, each once; none for ``ADD``.
        section: Where a bullet is added.
        content: What the bullet says from now on.
    """

    op: Op
    ids: tuple[str, ...] = ()
    section: str = ""
    content: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(sorted(set(self.ids))))

    def __str__(self) -> str:
        named = f" {', '.join(self.ids)}" if self.ids else ""
        said = f": {self.content[:80]}" if self.content else ""
        return f"{self.op}{named}{said}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data that :meth:`from_json` reads back."""
        return {"op": self.op, "ids": list(self.ids), "section": self.section, "content": self.content}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Delta:
        """Read what :meth:`to_json` returned."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Applied:
    """A playbook after a change, and one sentence for each delta that was not done or bullet that refining took out."""

    book: Book
    notes: tuple[str, ...] = ()


def apply_deltas(book: Book, deltas: Iterable[Delta]) -> Applied:
    """Apply deltas to a playbook; their order does not matter, and applying them again changes nothing.

    Additions come first and stand behind what is there, by their ids: an id follows from what the bullet says, so the
    same advice is added once. Then each bullet takes one change. Where several deltas want the same bullet, the one
    that most of the given deltas agree on wins; among those, ``MERGE`` before ``UPDATE`` before ``DELETE``, which keeps
    the most; among those, the first by its text. The others are ignored, in full. What lacks a content that it needs
    takes part in nothing. Which deltas are in conflict is decided on the deltas alone.

    A merge keeps the bullet that stands first, with the counters of all of them. What names an unknown bullet is
    ignored; a merge that knows fewer than two of its bullets is too. A section that the playbook lacks stands for its
    last one. No bullet that no delta names is changed.
    """
    support = Counter(deltas)
    blank = sorted((one for one in support if one.op != "DELETE" and not one.content.strip()), key=_order)
    ignored = [f"{delta}: it says nothing" for delta in blank]
    wanted = [delta for delta in support if delta not in blank]
    added: dict[str, Bullet] = {}
    for delta in sorted((one for one in wanted if one.op == "ADD"), key=_order):
        _add(delta, book, added, ignored)
    bullets = {bullet.id: bullet for bullet in (*book.bullets, *(added[one] for one in sorted(added)))}
    claimed: dict[str, Delta] = {}
    for delta in sorted((one for one in wanted if one.op != "ADD"), key=lambda one: (-support[one], *_order(one))):
        taken = next((claimed[one] for one in delta.ids if one in claimed), None)
        if taken is not None:
            ignored.append(f"{delta}: {taken} names the same bullet and goes first")
            continue
        claimed.update(dict.fromkeys(delta.ids, delta))
        _change(delta, bullets, ignored)
    return Applied(Book(tuple(bullets.values()), book.sections), tuple(ignored))


def _order(delta: Delta) -> tuple[int, tuple[str, ...], str, str]:
    return (_RANK.get(delta.op, -1), delta.ids, delta.section, delta.content)


def _add(delta: Delta, book: Book, added: dict[str, Bullet], ignored: list[str]) -> None:
    section = next((name for name in book.sections if name.casefold() == delta.section.strip().casefold()), None)
    if section is None:
        section = book.sections[-1]
        if delta.section.strip():
            ignored.append(f"{delta}: there is no section {delta.section.strip()[:80]!r}, it stands in {section!r}")
    found = own_id(section, delta.content)
    # The digits tell what it says; the part before them only where it was filed.
    digits = found.rpartition("-")[2]
    known = (*(bullet.id for bullet in book.bullets), *added)
    same = next((one for one in known if one == found or one.rpartition("-")[2] == digits), None)
    if same is not None:
        ignored.append(f"{delta}: {same} says or said it already")
        return
    added[found] = Bullet(found, section, delta.content.strip("\n"))


def _change(delta: Delta, bullets: dict[str, Bullet], ignored: list[str]) -> None:
    merged = [bullet for bullet in bullets.values() if bullet.id in delta.ids]
    if len(merged) < (2 if delta.op == "MERGE" else 1):
        unknown = ", ".join(one for one in delta.ids if one not in bullets) or "no bullet"
        ignored.append(f"{delta}: it names {unknown}, which the playbook does not hold")
        return
    for bullet in merged if delta.op == "DELETE" else merged[1:]:
        del bullets[bullet.id]
    if delta.op != "DELETE":
        bullets[merged[0].id] = _joint(delta.content, *merged)


def _joint(content: str, first: Bullet, *others: Bullet) -> Bullet:
    """Return the first bullet with this content and the counters of all."""
    helpful = first.helpful + sum(one.helpful for one in others)
    return replace(first, content=content, helpful=helpful, harmful=first.harmful + sum(one.harmful for one in others))


def refine(book: Book, *, similarity: float = 0.8, leave_at: int = 3) -> Applied:
    """Join near-duplicates and let harmful bullets go. Refining again changes nothing.

    Of near-duplicates (see :class:`combee_dspy.reflections.NearDuplicates`) the one that stands first keeps its id and
    place. It takes over the longest wording, which says at least as much, and the sum of the counters. A bullet whose
    harmful count exceeds its helpful count by ``leave_at`` leaves; below that it stands last in its section.
    """
    notes: list[str] = []
    joined = True
    # A longer wording may be near a third bullet, and sums may harm: until nothing changes any more.
    while joined:
        joined = False
        known = NearDuplicates(similarity)
        kept: dict[int, Bullet] = {}
        notes += [f"{one.id} left: it harms more than it helps" for one in book.bullets if -one.value >= leave_at]
        for bullet in book.bullets:
            if -bullet.value >= leave_at:
                continue
            place = known.place(bullet.content)
            if first := kept.get(place):
                joined = True
                notes.append(f"{bullet.id} was joined into {first.id}: they say the same")
                bullet = _joint(max(first.content, bullet.content, key=len), first, bullet)
            kept[place] = bullet
        book = Book(tuple(kept.values()), book.sections)
    return Applied(book, tuple(notes))
