"""The default aggregator: a scan whose reduce cannot forget.

Calls above the first level name lessons by number, and code makes the edits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import dspy
from pydantic import Field

from combee_dspy.aggregators._base import arrived, together
from combee_dspy.aggregators._comparing import read_relations
from combee_dspy.aggregators._draft import Draft
from combee_dspy.aggregators._prompts import RelateLessons
from combee_dspy.aggregators._rulings import Rulings, find_opposed
from combee_dspy.aggregators._scan import Node, Scan
from combee_dspy.aggregators._union import Union
from combee_dspy.edits import BookEdit
from combee_dspy.events import AnswersIgnored, WarningRaised
from combee_dspy.lessons import BookLesson, Taught, lesson_id
from combee_dspy.records import FailedCall, Lesson, Lessons, Reflection
from combee_dspy.reflections import Vocabulary, example_text
from combee_dspy.strategies import StrategyContext, parameters

# How many ways of dealing lessons into groups :meth:`ReferenceScan.relate` asks about.
_DEALINGS = 2
# Void parts of an answer that one event names.
_NAMED = 5

_Groups = dict[tuple[int, int], list[BookLesson]]
"""Lessons for one call each, by the dealing and the number of the group in it."""


@parameters
class ReferenceScan(Union):
    """Reads shards of reflections in parallel, then compares numbered lessons level by level.

    The map is Combee's (§3.1): ⌊√n⌋ shards of reflections, each copied p times (§3.2), or as many
    as keep the fan-in. Code finds the examples that teach each lesson, by their words: small models
    that are to cite them write citations and no lesson. The levels above read lessons and no
    examples: new lessons and those of the book, dealt so that like ones meet,
    all groups of a level at once. A reader answers with numbers alone: which lessons say the same,
    contradict each other, are exceptions to others, or say nothing. Code makes the edits. So what
    no answer names stays, a call that fails changes nothing, and a level costs one short answer a
    group.

    The scan relates lessons. A weigher decides which side of a contradiction is served, by the
    examples on each side, all updates together (see :mod:`combee_dspy.weighers`).

    Example:
        >>> import asyncio
        >>> from combee_dspy.aggregators import ReferenceScan
        >>> from combee_dspy.testing import arriving, context, reflections
        >>> async def learn():
        ...     return await ReferenceScan().aggregate(arriving(reflections(9)), context())
        >>> len(asyncio.run(learn()).lessons)
        6

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

    compared: Annotated[int, Field(ge=2)] = 40
    levels: Annotated[int, Field(ge=0)] = 6

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the new lessons, and edits that relate them to each other and to the book."""
        scan = await self.scanned(reflections, context, finds_sources=True)
        if not scan.levels or context.related_later:
            return scan.result()
        (root,) = scan.top
        fresh = {lesson_id(lesson.text): lesson for lesson in root.lessons}
        taught = (Taught(lesson.text, tuple(map(str, lesson.sources))) for lesson in fresh.values())
        draft = Draft(context.book, context.book.add(taught, context.update), fresh)
        read = [item for item in await arrived(reflections) if item is not None]
        compared: set[tuple[str, ...]] = set()
        for level in range(self.levels):
            groups = await self._deal(scan, draft, [level], compared)
            if not groups:
                break
            before, draft = draft, await _compare(scan, draft, groups, read)
            scan.levels.append([Node(draft.lessons(), root.sources)])
            if draft.book == before.book:
                break
        lessons = draft.lessons()
        return replace(scan.result(), lessons=lessons, edits=draft.relations(lessons))

    async def relate(self, fresh: Sequence[str], context: StrategyContext) -> tuple[BookEdit, ...]:
        """Return what readers say of new lessons and of those of the book that are nearest to them.

        All calls run at once, for two ways of dealing: a run has no time for level after level, and
        compares lessons again when later ones are near to them. Examples whose words speak clearly
        against a lesson count as harmed by it.
        """
        scan = Scan(context, self.max_call_tokens)
        draft = Draft(context.book, context.book, {lesson_id(text): Lesson(text) for text in fresh})
        groups = await self._deal(scan, draft, range(min(_DEALINGS, self.levels)), set())
        draft = await _compare(scan, draft, groups, context.reflections)
        opposed = await asyncio.to_thread(find_opposed, draft.book.lessons, context.reflections)
        return draft.after(opposed)[0].edits

    async def _deal(
        self, scan: Scan, draft: Draft, dealings: Iterable[int], compared: set[tuple[str, ...]]
    ) -> _Groups:
        """Return groups of new lessons and those that are nearest to them.

        A group that was compared before, word for word, has its answer and is left out.
        """
        groups: _Groups = {}
        for dealing in dealings:
            # A book of 1,500 lessons takes seconds, in which nothing else could run.
            dealt = await asyncio.to_thread(draft.deal, scan, self.compared, dealing)
            for number, group in enumerate(dealt):
                texts = tuple(lesson.text for lesson in group)
                if texts not in compared:
                    compared.add(texts)
                    groups[dealing, number] = group
        return groups


async def _compare(
    scan: Scan, draft: Draft, groups: _Groups, examples: Sequence[Reflection]
) -> Draft:
    """Ask about all groups at once, and return the draft after the answers, in their order.

    A group without an answer is left to what the examples' words tell. So are all where no answer
    relates anything: an empty list is a good answer of a reader that relates other lessons.
    """
    answers = await together(_ask(scan, place, group) for place, group in groups.items())
    lessons = [lesson.text for lesson in draft.book.lessons]
    # Thousands of examples take long, in which nothing else could run.
    vocabulary = await asyncio.to_thread(Vocabulary.of, lessons, map(example_text, examples))
    unanswered: list[list[BookLesson]] = []
    is_related = False
    for number, (group, answer) in enumerate(zip(groups.values(), answers, strict=True)):
        if isinstance(answer, FailedCall):
            scan.warn(number, f"a comparison of {len(group)} lessons failed: {answer.error}")
            unanswered.append(group)
            continue
        fields = {name: answer.get(name) for name in RelateLessons.output_fields}
        relations = read_relations(fields, group, vocabulary)
        is_related |= bool(relations.edits)
        draft, refused = draft.after(relations.edits)
        if void := (*relations.void, *refused):
            scan.context.emit(AnswersIgnored(len(void), void[:_NAMED]))
    if not is_related:
        unanswered = list(groups.values())
    if not unanswered:
        return draft
    rulings = await asyncio.to_thread(Rulings.of, examples)
    answered = len(draft.edits)
    for group in unanswered:
        # Who writes lessons may be hostile, so code's relations pass the checks of a reader's.
        by_words = rulings.relate([lesson.text for lesson in group])
        draft, _ = draft.after(read_relations(by_words, group, vocabulary).edits)
    if ruled := len(draft.edits) - answered:
        scan.context.emit(
            WarningRaised(
                f"{len(unanswered)} of {len(groups)} comparisons of lessons related none:"
                f" {ruled} relations were read from the words of the examples"
            )
        )
    return draft


async def _ask(
    scan: Scan, place: tuple[int, int], group: Sequence[BookLesson]
) -> dspy.Prediction | FailedCall:
    inputs = {
        "current_instruction": scan.context.text,
        "lessons": [f"{number}. {lesson.text}" for number, lesson in enumerate(group, start=1)],
    }
    return await scan.context.ask(RelateLessons, inputs, "compare", *place)
