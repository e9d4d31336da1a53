"""Grow and refine: near-duplicates become one, and what harms leaves. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from combee_dspy.artifacts._book import Book, Bullet
from combee_dspy.reflections import NearDuplicates

__all__ = ["Refined", "refine"]


@dataclass(frozen=True, slots=True)
class Refined:
    """A playbook after refining.

    Attributes:
        book: The playbook.
        joined: ``(id, id that took it in)`` of every near-duplicate.
        left: Ids of the bullets that left because they harm.
    """

    book: Book
    joined: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was joined and what left, one sentence each."""
        joined = (f"{one} was joined into {kept}: they say the same" for one, kept in self.joined)
        return (*joined, *(f"{one} left: it harms more than it helps" for one in self.left))


def refine(book: Book, *, similarity: float = 0.8, leave_at: int = 3) -> Refined:
    """Join near-duplicates and let harmful bullets go. Refining again changes nothing.

    Of near-duplicates (see :class:`combee_dspy.reflections.NearDuplicates`) the one that stands
    first keeps its id and place. It takes over the longest wording, which says at least as much,
    and the sum of the counters. A bullet whose harmful count exceeds its helpful count by
    ``leave_at`` leaves; below that it stands last in its section.

    Args:
        book: The playbook.
        similarity: Jaccard similarity of word pairs from which two bullets count as one, in (0, 1].
        leave_at: Net harm at which a bullet leaves, at least 1.
    """
    joined: list[tuple[str, str]] = []
    left: list[str] = []
    while True:
        left += [bullet.id for bullet in book.bullets if -bullet.value >= leave_at]
        kept = [bullet for bullet in book.bullets if -bullet.value < leave_at]
        # A longer wording may be near a third bullet, and sums may harm: until nothing changes any more.
        bullets, found = _joined(kept, similarity)
        book = Book(tuple(bullets), book.sections)
        if not found:
            return Refined(book, tuple(joined), tuple(left))
        joined += found


def _joined(bullets: list[Bullet], similarity: float) -> tuple[list[Bullet], list[tuple[str, str]]]:
    known = NearDuplicates(similarity)
    kept: dict[int, Bullet] = {}
    joined: list[tuple[str, str]] = []
    for bullet in bullets:
        place = known.place(bullet.content)
        first = kept.get(place)
        if first is None:
            kept[place] = bullet
            continue
        kept[place] = replace(
            first,
            content=max(first.content, bullet.content, key=len),
            helpful=first.helpful + bullet.helpful,
            harmful=first.harmful + bullet.harmful,
        )
        joined.append((bullet.id, first.id))
    return list(kept.values()), joined
