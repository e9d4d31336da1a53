"""What each candidate of a front holds of the books, and what it is offered of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from combee_dspy.lessons import Book, BookLesson, lesson_id
from combee_dspy.records import Lesson, Lessons
from combee_dspy.reflections import fit_lines
from combee_dspy.search._candidates import Candidate

# So often children are offered a lesson that their parent lacks: for ever, a lesson that spoils
# children would spoil every child.
_MOST_OFFERS = 2
# Estimated tokens of what a child is offered.
_MOST_OFFERED = 1_000


@dataclass(frozen=True, slots=True)
class Share:
    """What a child may hold of what was learned about a component.

    Attributes:
        book: The book without the lessons that are not for this child.
        lessons: Those of its update, and then those that it is offered.
        ids: The lessons of this run that are for it, where they are not all.
        new: Those of them that its parent lacks.
    """

    book: Book
    lessons: Lessons
    ids: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()


class Shares:
    """Says which lessons are for a child: its parent's, its update's, and a few that it is offered.

    Candidates are compared with each other, so they have to differ: were all lessons in every
    child, one that harms would be in each. A parent lacks what its siblings learned, and what only
    a child that was refused did: such lessons are offered to children, the latest first. What came
    into a child that was worse than its parent is offered no more, unless it came into another that
    was not: rows that fail teach the good lines of it again.

    Takes one update at a time, in order. Update i knows how children of updates up to i − 1 −
    staleness did, so that a run that goes on, or is replayed, offers the same.
    """

    def __init__(self, staleness: int) -> None:
        self._staleness = staleness
        self._held: dict[str, Mapping[str, frozenset[str]]] = {}  # by candidate and component
        self._new: dict[str, Mapping[str, frozenset[str]]] = {}  # what its parent lacked
        self._judged: list[tuple[int, Candidate, bool]] = []
        self._offers: Counter[tuple[str, str]] = Counter()  # by component and lesson

    def offer(
        self, update: int, component: str, parent: Candidate, lessons: Lessons, book: Book
    ) -> Share:
        """Return what the children that an update makes of a parent may hold; each offer counts.

        Args:
            update: Its number.
            component: Whose lessons.
            parent: The candidate that is edited.
            lessons: What the update taught.
            book: The component's book, with these lessons.
        """
        before = _homes(self._held.get(parent.id, {}).get(component, ()), book)
        ids = before | _homes((lesson_id(lesson.text) for lesson in lessons.lessons), book)
        ids |= _in_their_place(ids, book)
        offered = []
        if lessons.rewrite is None:  # what wrote a whole text leaves no room for more
            closed = ids | self._doubted(update, component, book)
            offered = [lesson for lesson in self._open(component, book) if lesson.id not in closed]
            fitting = set(fit_lines((lesson.text for lesson in offered), _MOST_OFFERED))
            offered = [lesson for lesson in offered if lesson.text in fitting]
        # No rollout of this update teaches them.
        reminders = (Lesson(lesson.text, section=lesson.section) for lesson in offered)
        self._offers.update((component, lesson.id) for lesson in offered)
        ids.update(lesson.id for lesson in offered)
        return Share(
            Book(tuple(lesson for lesson in book.lessons if _is_for(lesson, ids))),
            replace(lessons, lessons=(*lessons.lessons, *reminders)),
            frozenset(ids),
            frozenset(ids - before),
        )

    def note(self, child: Candidate, parent: Candidate, shares: Mapping[str, Share]) -> None:
        """Note that a child holds its parent's lessons, and those of the components it edited."""
        edited = {component: share.ids for component, share in shares.items()}
        self._held.setdefault(child.id, {**self._held.get(parent.id, {}), **edited})
        new = {component: share.new for component, share in shares.items()}
        self._new.setdefault(child.id, new)

    def judge(self, update: int, child: Candidate, *, passed: bool) -> None:
        """Note whether a child of an update was no worse than its parent."""
        self._judged.append((update, child, passed))

    def _doubted(self, update: int, component: str, book: Book) -> set[str]:
        """Return the lessons that came into children that were worse, and into no others."""
        came: dict[bool, set[str]] = {True: set(), False: set()}
        for step, child, passed in self._judged:
            if step < update - self._staleness:
                came[passed] |= self._new.get(child.id, {}).get(component, frozenset())
        # Wordings that were apart then may be one lesson by now.
        return _homes(came[False], book) - _homes(came[True], book)

    def _open(self, component: str, book: Book) -> Iterable[BookLesson]:
        """Return the served lessons that may still be offered, the latest first."""
        return (
            lesson
            for lesson in reversed(book.lessons)
            if lesson.state == "served"
            and lesson.born >= 0
            and self._offers[component, lesson.id] < _MOST_OFFERS
        )


def _homes(wordings: Iterable[str], book: Book) -> set[str]:
    """Return the ids of the lessons that have these wordings now."""
    return {lesson.id for wording in wordings if (lesson := book.find(wording)) is not None}


def _in_their_place(ids: Collection[str], book: Book) -> set[str]:
    """Return what contradicts lessons that are served no more: it may say the same case right."""
    lessons = (lesson for lesson in book.lessons if lesson.id in ids)
    return {rival for lesson in lessons if lesson.state != "served" for rival in lesson.rivals}


def _is_for(lesson: BookLesson, ids: Collection[str]) -> bool:
    """Whether a child may hold a lesson. What is served to nobody tells that its line has left."""
    return lesson.born < 0 or lesson.state != "served" or lesson.id in ids
