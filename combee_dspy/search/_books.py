"""The books of a run, one for each component: updates change them in their order.

Where candidates are compared, each holds a share of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from combee_dspy.artifacts import Artifact
from combee_dspy.events import AnswersIgnored, BookChanged, Emit
from combee_dspy.lessons import Book, BookEdit, BookLesson, lesson_id, taught
from combee_dspy.records import Lesson, Lessons, Reflection
from combee_dspy.reflections import example_text, fit_lines
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._keeper import Learned
from combee_dspy.weighers import Weigher

# More updates than may be under way at once, whatever the staleness.
_OVERLAP = 8
# Examples whose words are at hand for tests of lines.
_REMEMBERED = 2_000
# Refused edits that an event quotes.
_QUOTED = 5


@dataclass(eq=False)
class Books:
    """What a run has learned, by component. Owned by one search, changed in the order of updates.

    An update reads the books as they were when it began, so that what it learns does not depend on
    how fast another one was.

    Attributes:
        weigher: Decides which lessons are served.
        emit: Writes an event.
        removed: Texts of lessons that the user wants no text to serve.
        now: The books with everything that was learned so far.
    """

    artifact: Artifact
    seed: Candidate
    components: tuple[str, ...]
    weigher: Weigher
    emit: Emit
    removed: tuple[str, ...] = ()
    now: dict[str, Book] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for component in self.components:
            self.now[component] = self.artifact.begin(self.seed.texts[component]).without(
                self.removed
            )
        self._after: dict[int, Mapping[str, Book]] = {-1: dict(self.now)}
        self._examples: dict[str, list[tuple[int, str]]] = {}  # by component: update and words

    def after(self, component: str, update: int) -> Book:
        """Return a component's book as an update left it; that of the student where the update is
        below 0.
        """
        return self._after[max(update, -1)].get(component, Book())

    def examples(self, component: str) -> list[str]:
        """Return the words of the examples that updates read for a component, the latest 2,000."""
        return [words for _, words in self._examples.get(component, ())]

    def rewind(self, update: int) -> None:
        """Take back all that later updates have learned."""
        for component, book in self._after[max(update, -1)].items():
            if book != self.now[component]:
                self.now[component] = book
                self.emit(BookChanged.of(book), step=update + 1, component=component)
        for component, examples in self._examples.items():
            self._examples[component] = [each for each in examples if each[0] <= update]

    def learn(self, learned: Learned) -> None:
        """Add what an update learned, and weigh all of it. Called for every update, in order."""
        update = learned.plan.step
        for component, read in learned.reflections.items():
            examples = [(update, example_text(reflection)) for reflection in read]
            before = self._examples.get(component, [])
            self._examples[component] = [*before, *examples][-_REMEMBERED:]
        for component, lessons in learned.lessons.items():
            if lessons.rewrite is not None:
                continue  # a whole text is no part of the book
            new = self.now[component].add(
                taught(lessons, learned.reflections[component], update), update
            )
            self._change(component, new, lessons.edits, update)

    def relate(self, update: int, relations: Mapping[str, Iterable[BookEdit]]) -> None:
        """Make the edits, by component, that relate what an update taught to the rest; it leaves
        the books so.
        """
        for component, edits in relations.items():
            self.edit(component, edits, update)
        self._after[update] = dict(self.now)
        # Updates that overlap are few: older books are read by nobody.
        self._after.pop(update - _OVERLAP, None)

    def edit(self, component: str, edits: Iterable[BookEdit], update: int) -> None:
        """Make edits outside an update's lessons, as tests and comparisons do."""
        self._change(component, self.now[component], edits, update)

    def _change(self, component: str, book: Book, edits: Iterable[BookEdit], update: int) -> None:
        before = self.now[component]
        edited = book.edit(edits)
        after = self.weigher.applied(edited.book)
        self.now[component] = after
        if edited.refused:
            ignored = AnswersIgnored(len(edited.refused), edited.refused[:_QUOTED])
            self.emit(ignored, step=update, component=component)
        if after != before:
            self.emit(BookChanged.of(after), step=update, component=component)


@dataclass(frozen=True)
class ServedBooks:
    """Shows the books as the artifact serves them, where no operators edit its texts."""

    books: Books
    _examples: dict[str, dict[str, Reflection]] = field(default_factory=dict, init=False)

    @property
    def labels(self) -> Sequence[str]:
        """What made a text."""
        return (self.books.artifact.name,)

    async def edited(self, learned: Learned, base: Candidate) -> Candidate:
        """Return a candidate that serves what an update learned, and all before it."""
        artifact, texts = self.books.artifact, dict(base.texts)
        for name in learned.lessons:
            examples, book = self._examples.setdefault(name, {}), self.books.now[name]
            for reflection in learned.reflections[name] if artifact.looks_up else ():
                examples[reflection.source(learned.plan.step)] = reflection
            # What is looked up may wait for a service: not on the loop.
            texts[name] = await asyncio.to_thread(
                artifact.arranged, artifact.serve(texts[name], book), book, examples
            )
        return base.edited(texts)

    def allows(self, base: Candidate, text: Candidate) -> bool:
        """Allow every text: no guard and no operator has a say here."""
        return True


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
