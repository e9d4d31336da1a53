"""A book with new lessons, while readers relate them to the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from combee_dspy.aggregators._scan import Scan
from combee_dspy.edits import BookEdit, Contradict, Narrow, Retire, Unite
from combee_dspy.lessons import Book, BookLesson, deal_alike, lesson_id
from combee_dspy.records import Lesson
from combee_dspy.reflections import estimate_tokens

# A lesson that so many times as many examples contradict is compared no more. It stays in the book.
_OUTVOTED = 3
_NUMBER_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Draft:
    """The book of before, and the book with new lessons after edits.

    Attributes:
        before: The book without the new lessons.
        book: The book with them, after the edits.
        fresh: The new lessons by id, their sources as indices of reflections.
        edits: What code accepted of the answers, in order.
    """

    before: Book
    book: Book
    fresh: Mapping[str, Lesson]
    edits: tuple[BookEdit, ...] = ()

    def deal(self, scan: Scan, most: int, dealing: int) -> list[list[BookLesson]]:
        """Return groups of lessons to compare: each new one with those that are nearest to it.

        A lesson is new where this update brought it or a wording of it. One that came word for word
        was compared then.
        """
        lessons = self._comparable()
        fresh = [
            place
            for place, lesson in enumerate(lessons)
            if lesson.worded == scan.context.update and self.fresh.keys() & set(lesson.wordings)
        ]
        texts = [lesson.text for lesson in lessons]
        longest = max(map(estimate_tokens, texts), default=0) + _NUMBER_TOKENS
        most = max(2, min(most, scan.room // longest))
        groups = deal_alike(texts, fresh, most, scan.context.stream("compare", dealing))
        return [[lessons[place] for place in group] for group in groups]

    def _comparable(self) -> list[BookLesson]:
        """Return the lessons that no rival outvotes."""
        support = {lesson.id: lesson.support for lesson in self.book.lessons}
        return [
            lesson
            for lesson in self.book.lessons
            if lesson.decided
            or all(support.get(rival, 0) < _OUTVOTED * lesson.support for rival in lesson.rivals)
        ]

    def after(self, edits: Iterable[BookEdit]) -> tuple[Draft, tuple[str, ...]]:
        """Return the draft after edits, and why the others could not be made."""
        edited = self.book.edit(edits)
        draft = replace(self, book=edited.book, edits=(*self.edits, *edited.edits))
        return draft, edited.refused

    def lessons(self) -> tuple[Lesson, ...]:
        """Return the new lessons: one for all new wordings that say the same."""
        joined: list[Lesson] = []
        for lesson in self.book.lessons:
            fresh = [self.fresh[wording] for wording in lesson.wordings if wording in self.fresh]
            if fresh:
                sources = {source for wording in fresh for source in wording.sources}
                text = lesson.text
                if lesson_id(text) not in self.fresh:
                    text = max(fresh, key=lambda wording: len(wording.sources)).text
                joined.append(Lesson(text, tuple(sorted(sources))))
        return tuple(joined)

    def relations(self, lessons: Sequence[Lesson]) -> tuple[BookEdit, ...]:
        """Return the edits that bring the earlier book to the draft, once lessons are added."""
        ids = {lesson.id for lesson in self.before.lessons}
        ids |= {lesson_id(lesson.text) for lesson in lessons}
        # Edits name wordings, and only these of them are known to a book with the lessons.
        named: dict[str, str] = {}
        edits: dict[BookEdit, None] = {}
        for lesson in self.book.lessons:
            members = [wording for wording in lesson.wordings if wording in ids]
            # The clearest wording comes first.
            members.sort(key=lambda wording: wording != lesson_id(lesson.text))
            named.update(dict.fromkeys(lesson.wordings, members[0]))
            if len(members) > 1:
                edits[Unite(tuple(members))] = None
        for edit in self.edits:
            if isinstance(edit, Contradict):
                sides = dict.fromkeys(named[side] for side in edit.lessons)
                edits[Contradict(tuple(sides))] = None
            elif isinstance(edit, Narrow):
                edits[Narrow(named[edit.exception], named[edit.rule])] = None
            elif isinstance(edit, Retire):
                edits[replace(edit, lesson=named[edit.lesson])] = None
        return tuple(edits)
