"""A scan whose reduce cannot forget.

Readers above the first level name lessons by number, and code edits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import dspy
from pydantic import Field

from combee_dspy.aggregators._base import Dealt, together
from combee_dspy.aggregators._comparing import Vocabulary, read_relations
from combee_dspy.aggregators._prompts import AddCitedLessons, RelateLessons
from combee_dspy.aggregators._reading import ReadingTask
from combee_dspy.aggregators._scan import ScanState
from combee_dspy.edits import BookEdit, Contradict, Narrow, Retire, Unite
from combee_dspy.events import AnswersIgnored
from combee_dspy.lessons import Book, BookLesson, Taught, deal_alike, lesson_id
from combee_dspy.records import FailedCall, Lesson, Lessons, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext, parameters


@parameters
class ReferenceScan(Dealt):
    """Reads shards of reflections in parallel, then compares numbered lessons level by level.

    The map is Combee's (§3.1): ⌊√n⌋ shards of reflections, each copied p times (§3.2), or as many
    as keep the fan-in. Its readers cite the examples that each lesson comes from. The levels above
    read lessons and no examples: new lessons and those of the book, dealt so that like ones meet,
    all groups of a level at once. A reader answers with numbers alone: which lessons say the same,
    contradict each other, are exceptions to others, or say nothing. Code makes the edits. So what
    no answer names stays, a call that fails changes nothing, and a level costs one short answer a
    group.

    The scan relates lessons. Which side of a contradiction is served is for a weigher to say, by
    the examples on each side, all updates together (see :mod:`combee_dspy.weighers`).

    Example:
        >>> import asyncio
        >>> from combee_dspy.aggregators import ReferenceScan
        >>> from combee_dspy.testing import arriving, context, reflections
        >>> async def learn():
        ...     return await ReferenceScan().aggregate(arriving(reflections(9)), context())
        >>> len(asyncio.run(learn()).lessons)
        8

    Args:
        copies: Copies of each reflection at most, p, and fewer than the shards that one may reach;
            2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the
            paper.
        fan_in: The most reflections one call may take (see :class:`combee_dspy.aggregators.Union`).
        max_call_tokens: Estimated tokens one call may take, the prompt included.
        max_lessons: The most lessons a shard may return.
        window: How many shards a copy may travel (see :class:`combee_dspy.aggregators.Union`).
        similarity: Jaccard similarity of word pairs from which code takes two lessons for one.
        compared: The most lessons that one call compares.
        levels: The most levels of comparisons. A level that changes nothing ends them.
    """

    name: ClassVar[str] = "reference-scan"

    fan_in: Annotated[int, Field(ge=2)] = 16
    max_lessons: Annotated[int, Field(ge=1)] = 32
    window: Annotated[int, Field(ge=1)] | None = 4
    similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    compared: Annotated[int, Field(ge=2)] = 40
    levels: Annotated[int, Field(ge=0)] = 6

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the new lessons, and edits that relate them to each other and to the book."""
        scan = ScanState(context, self.max_call_tokens)
        question = ReadingTask(AddCitedLessons, {"most_lessons": self.max_lessons}, cites=True)
        await scan.read(reflections, self.shards(len(reflections), context) or (), question)
        if not scan.levels:
            return scan.result()
        scan.join(self.similarity)
        if context.related_later:
            return scan.result()
        fresh = {lesson_id(lesson.text): lesson for lesson in scan.top[0].lessons}
        taught = (Taught(lesson.text, tuple(map(str, lesson.sources))) for lesson in fresh.values())
        draft = Draft(context.book, context.book.add(taught, context.update), fresh)
        draft = await self._compare_levels(scan, draft, [[level] for level in range(self.levels)])
        lessons = draft.lessons()
        return replace(scan.result(), lessons=lessons, edits=draft.relations(lessons))

    async def relate(self, fresh: Sequence[str], context: StrategyContext) -> tuple[BookEdit, ...]:
        """Return what readers say of new lessons and of those of the book that are nearest to them.

        All is asked at once, dealt in two ways: a run has no time for level after level, and
        compares again what later lessons are near to.
        """
        lessons = {lesson_id(text): Lesson(text) for text in fresh}
        scan = ScanState(context, self.max_call_tokens)
        draft = Draft(context.book, context.book, lessons)
        return (await self._compare_levels(scan, draft, [range(min(_DEALINGS, self.levels))])).edits

    async def _compare_levels(
        self, scan: ScanState, draft: Draft, rounds: Iterable[Sequence[int]]
    ) -> Draft:
        """Compare new lessons with the nearest ones until a round changes nothing."""
        compared: set[tuple[str, ...]] = set()
        for levels in rounds:
            groups: list[tuple[tuple[int, int], list[BookLesson]]] = []
            for level in levels:
                # A book of 1,500 lessons takes seconds, in which nothing else could run.
                dealt = await asyncio.to_thread(draft.groups, scan, self.compared, level)
                for number, group in enumerate(dealt):
                    texts = tuple(lesson.text for lesson in group)
                    # What was asked word for word has its answer: a few lessons are dealt into one
                    # group each time.
                    if texts not in compared:
                        compared.add(texts)
                        groups.append(((level, number), group))
            if not groups:
                break
            answers = await together(_compare(scan, group, *place) for place, group in groups)
            after, vocabulary = draft, Vocabulary.of(lesson.text for lesson in draft.book.lessons)
            for number, ((_, group), answer) in enumerate(zip(groups, answers, strict=True)):
                after = after.apply(scan, number, group, answer, vocabulary)
            sources = scan.top[0].output.sources if scan.top else ()
            scan.levels.append([scan.node(0, after.lessons(), sources)])
            if after.book == draft.book:
                break
            draft = after
        return draft


@dataclass(frozen=True, slots=True)
class Draft:
    """A book in which new lessons stand, while readers relate them.

    Attributes:
        before: The book without them.
        book: The book with them, after the edits.
        fresh: The new lessons by id, their sources as indices of reflections.
        edits: What readers said and code accepted, in order.
    """

    before: Book
    book: Book
    fresh: dict[str, Lesson]
    edits: tuple[BookEdit, ...] = ()

    def groups(self, scan: ScanState, most: int, level: int) -> list[list[BookLesson]]:
        """Return groups of lessons to compare: each new one with those that are nearest to it.

        A lesson is new where this update brought it or a wording of it. One that came word for word
        was compared then.
        """
        support = {lesson.id: lesson.support for lesson in self.book.lessons}
        comparable = [
            lesson
            for lesson in self.book.lessons
            if lesson.decided
            or not any(
                support.get(rival, 0) >= _OUTVOTED * lesson.support for rival in lesson.rivals
            )
        ]
        fresh = [
            place
            for place, lesson in enumerate(comparable)
            if lesson.worded == scan.context.update and self.fresh.keys() & set(lesson.wordings)
        ]
        longest = (
            max((estimate_tokens(lesson.text) for lesson in comparable), default=0) + _NUMBER_TOKENS
        )
        most = max(2, min(most, scan.room // longest))
        dealt = deal_alike(
            [lesson.text for lesson in comparable],
            fresh,
            most,
            scan.context.stream("compare", level),
        )
        return [[comparable[place] for place in group] for group in dealt]

    def apply(
        self,
        scan: ScanState,
        number: int,
        group: Sequence[BookLesson],
        answer: dspy.Prediction | FailedCall,
        vocabulary: Vocabulary,
    ) -> Draft:
        """Return the draft after one answer about a group; unchanged where the call failed."""
        if isinstance(answer, FailedCall):
            scan.warn(number, f"a comparison of {len(group)} lessons failed: {answer.error}")
            return self
        fields = {name: answer.get(name) for name in RelateLessons.output_fields}
        relations = read_relations(fields, group, vocabulary)
        edited = self.book.edit(relations.edits)
        void = (*relations.void, *edited.refused)
        if void:
            scan.context.emit(AnswersIgnored(len(void), void[:_NAMED]))
        return replace(self, book=edited.book, edits=(*self.edits, *edited.edits))

    def lessons(self) -> tuple[Lesson, ...]:
        """Return the new lessons: one for all new wordings that say the same."""
        joined: list[Lesson] = []
        for held in self.book.lessons:
            wordings = [self.fresh[wording] for wording in held.wordings if wording in self.fresh]
            if wordings:
                sources = {source for lesson in wordings for source in lesson.sources}
                clearest = self.fresh.get(lesson_id(held.text))
                text = (
                    held.text
                    if clearest
                    else max(wordings, key=lambda lesson: len(lesson.sources)).text
                )
                joined.append(Lesson(text, tuple(sorted(sources))))
        return tuple(joined)

    def relations(self, lessons: Sequence[Lesson]) -> tuple[BookEdit, ...]:
        """Return the edits that bring the earlier book to the draft, once lessons are added."""
        ids = [lesson_id(lesson.text) for lesson in lessons]
        new = {held.id: lesson for lesson in ids if (held := self.book.find(lesson))}
        unions: dict[str, dict[str, None]] = {}
        for lesson in self.before.lessons:
            if held := self.book.find(lesson.id):
                unions.setdefault(held.id, {})[lesson.id] = None
        name = {
            home: new.get(home) or next(iter(members)) for home, members in unions.items()
        } | new
        edits: dict[BookEdit, None] = {}
        for home, members in unions.items():
            group = dict.fromkeys([*members, *([new[home]] if home in new else [])])
            held = self.book.find(home)
            if len(group) > 1 and held is not None:
                clearest = lesson_id(held.text)
                edits.setdefault(Unite(tuple(sorted(group, key=lambda member: member != clearest))))
        for edit in self.edits:
            if (renamed := self._renamed(edit, name)) is not None:
                edits.setdefault(renamed)
        return tuple(edits)

    def _renamed(self, edit: BookEdit, name: dict[str, str]) -> BookEdit | None:
        """Return an edit by the ids that remain after the unions; ``None`` where it is void."""

        def now(lesson: str) -> str:
            held = self.book.find(lesson)
            return name.get(held.id, lesson) if held else lesson

        if isinstance(edit, Contradict):
            members = tuple(dict.fromkeys(map(now, edit.lessons)))
            return Contradict(members) if len(members) > 1 else None
        if isinstance(edit, Narrow):
            exception, rule = now(edit.exception), now(edit.rule)
            return Narrow(exception, rule) if exception != rule else None
        return Retire(now(edit.lesson), edit.reason) if isinstance(edit, Retire) else None


# What so many times as many examples contradict need not be compared any more: nothing is lost, it
# stays in the book.
_OUTVOTED = 3
_DEALINGS = 2
_NUMBER_TOKENS = 4
_NAMED = 5


async def _compare(
    scan: ScanState, group: Sequence[BookLesson], level: int, number: int
) -> dspy.Prediction | FailedCall:
    inputs = {
        "current_instruction": scan.context.text,
        "lessons": [f"{place}. {lesson.text}" for place, lesson in enumerate(group, start=1)],
    }
    return await scan.context.ask(RelateLessons, inputs, "compare", level, number)
