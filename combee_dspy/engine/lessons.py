"""Every lesson that a run has found, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.records import Lesson, Lessons
from combee_dspy.reflections import estimate_tokens, normalised

__all__ = ["MAX_OFFERS", "KnownLesson", "LessonLedger"]

MAX_OFFERS = 2
"""How often a lesson may be offered again.

A lesson whose children are refused time after time is the likelier reason for
it the more often it happens; offered for ever, it would spoil every child.
"""

_OFFERED_TOKENS = 1_000


@dataclass(slots=True)
class KnownLesson:
    """One lesson of the ledger.

    Attributes:
        text: As the scan returned it.
        iteration: Where it was found first.
        examples: Row hashes of the examples behind it, as far as they are known.
        nodes: ``(level, node)`` of the scan's nodes that held it word for word.
        candidates: Content hashes of the candidates whose text held it.
        offers: How often it was offered to a later update.
    """

    text: str
    iteration: int
    examples: tuple[str, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()
    candidates: list[str] = field(default_factory=list)
    offers: int = 0


class LessonLedger:
    """The lessons of a run by component, so that a sibling's lessons are not lost with it.

    A parent is one candidate; what its siblings learned is not in its text. A
    lesson that the parent's text does not hold is offered to the next update, at
    most :data:`MAX_OFFERS` times. Owned by the thread that runs gepa's loop.
    """

    def __init__(self) -> None:
        self._lessons: dict[str, dict[str, KnownLesson]] = {}

    def __len__(self) -> int:
        return sum(len(known) for known in self._lessons.values())

    def of(self, component: str) -> tuple[KnownLesson, ...]:
        """Return a component's lessons, in the order in which they were found."""
        return tuple(self._lessons.get(component, {}).values())

    def add(self, lessons: Lessons, iteration: int, example_ids: Sequence[str | None]) -> None:
        """Note what a scan returned.

        Args:
            lessons: The scan's result. A result that is a whole text holds no lessons.
            iteration: The iteration.
            example_ids: Row hash by reflection index, ``None`` where it is not known.
        """
        known = self._lessons.setdefault(lessons.component, {})
        holders: dict[str, list[tuple[int, int]]] = {}
        for node in lessons.nodes:
            for key in dict.fromkeys(map(normalised, node.lessons)):
                holders.setdefault(key, []).append((node.level, node.node))
        for lesson in lessons.lessons:
            key = normalised(lesson.text)
            if key in known:
                continue
            examples = (example_ids[index] for index in lesson.sources if index < len(example_ids))
            found = tuple(sorted({example for example in examples if example}))
            known[key] = KnownLesson(lesson.text, iteration, found, tuple(holders.get(key, ())))

    def offer(self, component: str, parent: str, fresh: Iterable[Lesson] = ()) -> tuple[Lesson, ...]:
        """Return earlier lessons that the parent's text does not hold, the latest first.

        Each counts as offered. Those found by the scan at hand are not offered beside themselves.

        Args:
            component: The component.
            parent: Its text in the parent.
            fresh: What the scan at hand returned.
        """
        text = normalised(parent)
        own = {normalised(lesson.text) for lesson in fresh}
        room = _OFFERED_TOKENS
        offered: list[Lesson] = []
        for key, lesson in reversed(self._lessons.get(component, {}).items()):
            tokens = estimate_tokens(lesson.text)
            if key in own or key in text or lesson.offers >= MAX_OFFERS or tokens > room:
                continue
            room -= tokens
            lesson.offers += 1
            offered.append(Lesson(lesson.text))
        return tuple(offered)

    def carried(self, candidate_id: str, candidate: Mapping[str, str]) -> None:
        """Note which lessons a candidate's texts hold."""
        for component, known in self._lessons.items():
            text = normalised(candidate.get(component, ""))
            for key, lesson in known.items():
                if key in text and candidate_id not in lesson.candidates:
                    lesson.candidates.append(candidate_id)

    def dump(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            component: [
                [
                    one.text,
                    one.iteration,
                    list(one.examples),
                    [list(node) for node in one.nodes],
                    one.candidates,
                    one.offers,
                ]
                for one in known.values()
            ]
            for component, known in self._lessons.items()
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what :meth:`dump` returned."""
        self._lessons = {
            str(component): {
                normalised(text): KnownLesson(
                    str(text),
                    int(iteration),
                    tuple(map(str, examples)),
                    tuple((int(level), int(node)) for level, node in nodes),
                    list(map(str, candidates)),
                    int(offers),
                )
                for text, iteration, examples, nodes, candidates, offers in found
            }
            for component, found in data.items()
        }
