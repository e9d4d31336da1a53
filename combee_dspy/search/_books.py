"""The books of a run, one for each component: updates change them in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from combee_dspy.artifacts import Artifact
from combee_dspy.events import AnswersIgnored, BookChanged, Emit
from combee_dspy.lessons import Book, BookEdit, taught
from combee_dspy.records import Reflection
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._keeper import Learned
from combee_dspy.weighers import Weigher

# More updates than may be under way at once, whatever the staleness.
_OVERLAP = 8
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

    def after(self, component: str, update: int) -> Book:
        """Return a component's book as an update left it; that of the student where the update is
        below 0.
        """
        return self._after[max(update, -1)].get(component, Book())

    def learn(self, learned: Learned) -> None:
        """Add what an update learned, and weigh all of it. Called for every update, in order."""
        update = learned.plan.step
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
