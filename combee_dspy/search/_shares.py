"""What each candidate of a front holds of the books, and what it is offered of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from combee_dspy.lessons import Book, BookLesson, lesson_id
from combee_dspy.records import Lesson, Lessons
from combee_dspy.reflections import fit_lines
from combee_dspy.search._candidates import Candidate

__all__ = ["Share", "Shares"]

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
    """

    book: Book
    lessons: Lessons
    ids: frozenset[str] = frozenset()


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
        self._judged: list[tuple[int, Candidate, Candidate, bool]] = []  # in the order of updates
        self._held: dict[str, Mapping[str, frozenset[str]]] = {}  # by candidate and component
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
        home = {wording: lesson.id for lesson in book.lessons for wording in lesson.wordings}
        ids = {
            home[wording]
            for wording in (
                *self._of(parent).get(component, ()),
                *(lesson_id(lesson.text) for lesson in lessons.lessons),
            )
            if wording in home
        }
        ids |= _in_their_place(ids, book)
        offered = []
        if lessons.rewrite is None:  # what wrote a whole text leaves no room for more
            closed = ids | {
                home[wording] for wording in self._doubted(update, component) if wording in home
            }
            offered = [lesson for lesson in self._open(component, book) if lesson.id not in closed]
            fitting = set(fit_lines((lesson.text for lesson in offered), _MOST_OFFERED))
            offered = [lesson for lesson in offered if lesson.text in fitting]
        self._offers.update((component, lesson.id) for lesson in offered)
        ids.update(lesson.id for lesson in offered)
        return Share(
            Book(tuple(lesson for lesson in book.lessons if _is_for(lesson, ids))),
            replace(lessons, lessons=(*lessons.lessons, *map(_reminder, offered))),
            frozenset(ids),
        )

    def note(self, child: Candidate, parent: Candidate, shares: Mapping[str, Share]) -> None:
        """Note that a child holds its parent's lessons, and those of the components it edited."""
        edited = {component: share.ids for component, share in shares.items()}
        self._held.setdefault(child.id, {**self._of(parent), **edited})

    def judge(self, update: int, child: Candidate, parent: Candidate, *, passed: bool) -> None:
        """Note whether a child of an update was no worse than its parent."""
        self._judged.append((update, child, parent, passed))

    def _doubted(self, update: int, component: str) -> set[str]:
        """Return the lessons that came into children that were worse, and into no others."""
        came: dict[bool, set[str]] = {True: set(), False: set()}
        for step, child, parent, passed in self._judged:
            if step < update - self._staleness:
                before = self._of(parent).get(component, frozenset())
                came[passed] |= self._of(child).get(component, frozenset()) - before
        return came[False] - came[True]

    def _of(self, candidate: Candidate) -> Mapping[str, frozenset[str]]:
        return self._held.get(candidate.id, {})

    def _open(self, component: str, book: Book) -> Iterable[BookLesson]:
        """Return the served lessons that may still be offered, the latest first."""
        return (
            lesson
            for lesson in reversed(book.lessons)
            if lesson.state == "served"
            and lesson.born >= 0
            and self._offers[component, lesson.id] < _MOST_OFFERS
        )


def _reminder(lesson: BookLesson) -> Lesson:
    """Return a lesson of the book as one that no rollout of this update teaches."""
    return Lesson(lesson.text, section=lesson.section)


def _in_their_place(ids: Iterable[str], book: Book) -> set[str]:
    """Return what contradicts lessons that are served no more: it may say the same case right."""
    lessons = {lesson.id: lesson for lesson in book.lessons}
    return {
        rival for name in ids if lessons[name].state != "served" for rival in lessons[name].rivals
    }


def _is_for(lesson: BookLesson, ids: Iterable[str]) -> bool:
    """Whether a child may hold a lesson. What is served to nobody tells that its line has left."""
    return lesson.born < 0 or lesson.state != "served" or lesson.id in ids
