"""Lessons that a search has found, so that a sibling's are not lost with it."""

from __future__ import annotations

from collections.abc import Iterable

from combee_dspy.records import Lesson
from combee_dspy.reflections import estimate_tokens, normalised

__all__ = ["LessonLedger"]

_MOST_OFFERS = 2  # offered for ever, a lesson that spoils children would spoil every child
_OFFERED_TOKENS = 1_000


class LessonLedger:
    """Every lesson by component, with how often it was offered again.

    A parent is one candidate; what its siblings learned is not in its text. Owned by one search.
    """

    def __init__(self) -> None:
        self._offers: dict[str, dict[str, tuple[Lesson, int]]] = {}

    def add(self, component: str, lessons: Iterable[Lesson]) -> None:
        """Note what a scan returned."""
        known = self._offers.setdefault(component, {})
        for lesson in lessons:
            known.setdefault(normalised(lesson.text), (Lesson(lesson.text), 0))

    def offer(self, component: str, parent: str, fresh: Iterable[Lesson]) -> tuple[Lesson, ...]:
        """Return earlier lessons that the parent's text does not hold, the latest first; each counts as offered.

        Those that the scan at hand returned (``fresh``) are offered anyway.
        """
        text, own = normalised(parent), {normalised(one.text) for one in fresh}
        known, room, offered = self._offers.get(component, {}), _OFFERED_TOKENS, []
        for key, (lesson, offers) in reversed(known.items()):
            tokens = estimate_tokens(lesson.text)
            if key in own or key in text or offers >= _MOST_OFFERS or tokens > room:
                continue
            room -= tokens
            offered.append((key, lesson, offers))
        for key, lesson, offers in offered:
            known[key] = (lesson, offers + 1)
        return tuple(lesson for _, lesson, _ in offered)
