"""Grow and refine: near-duplicates become one, and what harms leaves. Pure."""

from __future__ import annotations

from dataclasses import replace

from combee_dspy.artifacts._book import Book, Bullet
from combee_dspy.artifacts._deltas import Applied
from combee_dspy.reflections import NearDuplicates

__all__ = ["refine"]


def refine(book: Book, *, similarity: float = 0.8, leave_at: int = 3) -> Applied:
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
    notes: list[str] = []
    while True:
        kept = [bullet for bullet in book.bullets if -bullet.value < leave_at]
        notes += [f"{one.id} left: it harms more than it helps" for one in book.bullets if one not in kept]
        # A longer wording may be near a third bullet, and sums may harm: until nothing changes any more.
        bullets, joined = _joined(kept, similarity)
        book = Book(tuple(bullets), book.sections)
        if not joined:
            return Applied(book, tuple(notes))
        notes += [f"{one} was joined into {first}: they say the same" for one, first in joined]


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
