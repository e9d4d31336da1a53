"""Shards return lines to add and code joins them: a reduce without an LM."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from combee_dspy.aggregators._base import Dealt, gathered, shard_count, together
from combee_dspy.aggregators._lessons import joined, traced
from combee_dspy.aggregators._prompts import AddLessons, ShortenLessons
from combee_dspy.aggregators._scan import Question, Scan
from combee_dspy.aggregators._vectors import reflection_vectors, text_vectors, topic_groups
from combee_dspy.records import Lesson, Lessons, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.shuffle import effective_copies
from combee_dspy.strategies import StrategyContext, parameters

# 0.75 words a token is the common rule for English; the rest is room for an LM that counts roughly.
_WORDS_PER_TOKEN = 0.65


@parameters
class Union(Dealt):
    """Reads shards of reflections in parallel; each returns lines to add, and code joins the lines.

    This is a map and a join by code: no scan. It is the paper's map and shuffle without its reduce: no LM call reads
    what another one wrote. There are ⌊√n⌋ shards, or as many as keep the fan-in. Their lists are joined in shard order;
    near-duplicates become one lesson with the sources of all its wordings and the longest of them. So no merge can lose
    a lesson, and none weighs lessons against each other: two that contradict each other both stay.

    Only a joined list that passes ``max_tokens`` is given back to an LM, to be shortened: in groups of similar lessons,
    ``fan_in`` a call, all at once. An answer that fails, is empty or still does not fit is dropped with a warning, and
    the group is kept: what the text may take is the operator's to enforce.

    Its nodes are the shards at level 1 and the joined list at level 2; where it was shortened, the groups follow at
    level 3, and their join, where there are several, at level 4.

    Args:
        copies: Copies of each reflection, p; 2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the paper.
        fan_in: The most reflections one call may take. 16 keeps the paper's ⌊√n⌋ shards up to 56 reflections at two
            copies; larger batches get more shards rather than longer ones. The number was chosen on the simulated
            service, a law of which takes in 12 records a call, and no model has confirmed it: there 16 keep 0.94 of
            the lessons of a batch of 240 and 32 keep 0.78, for a fifth fewer tokens. Beyond some 500 reflections on 64
            slots 16 are slower, 1.8 times at 10,000.
        max_call_tokens: Estimated tokens one call may take, the prompt included.
        max_lessons: The most lines a shard may return: two for each reflection of a full shard.
        window: How many shards a copy may travel, or ``None`` for no bound; for shuffled shards. 4: from eight shards
            on (57 reflections) they are dealt in blocks of four to seven, so that an early shard need not wait for the
            last rollout. Of all pairs of reflections about one in as many as there are blocks can then still meet in a
            shard: at 240, one in seven.
        max_tokens: Estimated tokens of the joined list from which an LM shortens it. 8,000, about two hundred lessons,
            is a third of a call: below that a reader is not crowded by it.
        similarity: Jaccard similarity of word pairs from which two lessons count as one, in (0, 1]. 0.8 lets one word
            in about seventeen differ.
        sharding: ``"shuffle"``, or ``"topic"``: reflections that are alike share a shard, so one call sees all that is
            known about a mistake. Copies are then divided by different cuts, each copy into shards of its own; nothing
            is read before all reflections are there.
    """

    name: ClassVar[str] = "union"

    fan_in: Annotated[int, Field(ge=2)] = 16
    max_lessons: Annotated[int, Field(ge=1)] = 32
    window: Annotated[int, Field(ge=1)] | None = 4
    max_tokens: Annotated[int, Field(ge=1)] = 8_000
    similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    sharding: Literal["shuffle", "topic"] = "shuffle"

    async def aggregate(self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext) -> Lessons:
        """Return the joined lines."""
        scan = Scan(context, self.max_call_tokens)
        question = Question(AddLessons, {"most_lessons": self.max_lessons})
        shards = self.shards(len(reflections), context)
        if shards is not None:
            await scan.read(reflections, shards, question)
        elif items := scan.fitted(await gathered(reflections), scan.share):
            await scan.read_groups(self._topics(scan, items), question)
        if scan.levels:
            scan.join(self.similarity)
            if sum(_sizes(scan.top[0].lessons)) > self.max_tokens:
                await self._shorten(scan)
        return scan.result()

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...] | None:
        """Return the positions in each shard, or ``None`` where likeness decides."""
        return None if self.sharding == "topic" else super().shards(n, context)

    def _topics(self, scan: Scan, items: Sequence[Reflection]) -> list[list[Reflection]]:
        """Return groups of like reflections that fit a call, each copy divided by other cuts."""
        k = shard_count(len(items), self.copies, self.fan_in)
        copies = effective_copies(self.copies, k)
        vectors, sizes, each = reflection_vectors(items), scan.tokens(items), -(-k // copies)
        return [
            [items[member] for member in group]
            for copy in range(copies)
            for group in topic_groups(
                vectors, sizes, each, scan.context.stream("topic", copy), room=scan.room, most=self.fan_in
            )
        ]

    async def _shorten(self, scan: Scan) -> None:
        """Add the levels that shorten the joined list: groups of similar lessons, and their join."""
        (whole,) = scan.top
        groups = self._like_lessons(scan, whole.lessons)
        total = sum(_sizes(whole.lessons))
        shares = [max(self.max_tokens * sum(_sizes(group)) // total, 1) for group in groups]

        async def shortened(number: int) -> object:
            given = {
                "current_instruction": scan.context.text,
                "long_lessons": [lesson.text for lesson in groups[number]],
                "most_words": max(int(shares[number] * _WORDS_PER_TOKEN), 1),
            }
            return await scan.context.ask(ShortenLessons, given, "shorten", number)

        answers = await together(map(shortened, range(len(groups))))
        level = []
        for number, (group, share, answer) in enumerate(zip(groups, shares, answers, strict=True)):
            sources = tuple(sorted({source for lesson in group for source in lesson.sources}))
            below = whole.output.sources if len(groups) == 1 else sources
            texts, failed = scan.texts(number, answer, len(group))
            short = joined([traced(texts, [group], below)], self.similarity)
            failed = failed or _misfit(short, share)
            if failed:
                scan.warn(number, f"{failed}: {len(group)} lessons stay as they are")
            level.append(scan.node(number, group if failed else short, below, failed))
        scan.levels.append(level)
        if len(level) > 1:
            scan.join(self.similarity)

    def _like_lessons(self, scan: Scan, lessons: Sequence[Lesson]) -> list[list[Lesson]]:
        sizes = _sizes(lessons)
        vectors = text_vectors([lesson.text for lesson in lessons])
        wanted = max(-(-sum(sizes) // scan.room), -(-len(lessons) // self.fan_in))
        stream = scan.context.stream("shorten")
        groups = topic_groups(vectors, sizes, wanted, stream, room=scan.room, most=self.fan_in)
        # In the order of the lessons that they begin with, so that a join keeps nearly the order that was.
        return [[lessons[member] for member in group] for group in sorted(groups)]


def _misfit(lessons: Sequence[Lesson], share: int) -> str | None:
    if not lessons:
        return "EmptyAnswer: the shortened list holds no lessons"
    size = sum(_sizes(lessons))
    return f"OverBudget: the shortened list takes {size:,} tokens of {share:,}" if size > share else None


def _sizes(lessons: Sequence[Lesson]) -> list[int]:
    return [estimate_tokens(lesson.text) for lesson in lessons]
