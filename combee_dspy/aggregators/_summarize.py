"""Summaries before the reduce: one for each shard, then one call that reads them all."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from itertools import accumulate
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.aggregators._base import Aggregator, CallTokens, data_room, shard_count
from combee_dspy.aggregators._prompts import (
    LearnFromExamples,
    LearnFromSummaries,
    SummarizeExamples,
)
from combee_dspy.aggregators._reading import ReadingTask
from combee_dspy.aggregators._scan import LESSON_TOKENS, ScanState
from combee_dspy.records import Lesson, Lessons, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.shuffle import plan_shards
from combee_dspy.strategies import StrategyContext, parameters

_WORDS_PER_TOKEN = 0.75
# Below this a summary holds too few points to be one.
_LEAST_SUMMARY_TOKENS = 5 * LESSON_TOKENS


@parameters
class Summarize(Aggregator):
    """Compresses each shard by one call, then writes the lessons from all summaries.

    A shard holds few enough reflections that its reader sees each of them; one too long for a call
    is read by several. Summaries share the room of the last call equally: each is told how many
    words it may have, and points beyond its share are left out of the last call, from the end, with
    a warning. Where there would be so many shards that a share is less than five points, shards
    grow instead. A single shard needs no summary: one call reads it and writes the lessons. A
    summary that fails is missing from the last call; if that fails or returns nothing, the points
    themselves are the lessons.

    Example:
        >>> import asyncio
        >>> from combee_dspy.aggregators import Summarize
        >>> from combee_dspy.testing import arriving, context, reflections
        >>> async def learn():
        ...     return await Summarize(shard_items=4).aggregate(arriving(reflections(9)), context())
        >>> [node.level for node in asyncio.run(learn()).nodes]
        [1, 1, 1, 2]

    Args:
        shard_items: The most reflections one summary is made of, which may have two points for
            each; 10 as in :class:`combee_dspy.aggregators.TopK`.
        max_call_tokens: Estimated tokens one call may take, the prompt included.
    """

    name: ClassVar[str] = "summarize"

    shard_items: Annotated[int, Field(ge=2)] = 10
    max_call_tokens: CallTokens = 24_000

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the lessons that the last call wrote."""
        scan = ScanState(context, self.max_call_tokens)
        shards = self.shards(len(reflections), context)
        if len(shards) < 2:
            await scan.read(
                reflections,
                shards,
                ReadingTask(LearnFromExamples, {"most_lessons": self._most_points()}),
            )
            if len(scan.top) > 1:
                scan.join()
            return scan.result()
        words = max(int(self._share(scan, len(shards)) * _WORDS_PER_TOKEN), 1)
        question = ReadingTask(
            SummarizeExamples, {"most_points": self._most_points(), "most_words": words}
        )
        await scan.read(reflections, shards, question)
        if scan.levels:
            await self._learn(scan)
        return scan.result()

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...]:
        """Return the positions in each shard, each position once."""
        if n == 0:
            return ()
        most = max(data_room(self.max_call_tokens, context.text) // _LEAST_SUMMARY_TOKENS, 1)
        k = shard_count(n, 1, max(self.shard_items, -(-n // most)))
        return plan_shards(n, 1, k, context.stream("shuffle"))

    def _most_points(self) -> int:
        return 2 * self.shard_items

    def _share(self, scan: ScanState, summaries: int) -> int:
        return min(scan.room // summaries, self._most_points() * 2 * LESSON_TOKENS)

    async def _learn(self, scan: ScanState) -> None:
        share = self._share(scan, len(scan.top))
        lists = [_take_share(node.lessons, share) for node in scan.top]
        for node, leading in zip(scan.top, lists, strict=True):
            if lost := len(node.lessons) - len(leading):
                scan.warn(
                    0,
                    f"{lost} points of summary {node.output.node} pass its share of {share:,}"
                    " tokens",
                )
        points = [[point.text for point in leading] for leading in lists if leading]
        answer = None
        if points:
            inputs = {"current_instruction": scan.context.text, "summaries": points}
            answer = await scan.ask(LearnFromSummaries, inputs, "learn")
        scan.levels.append(
            [scan.reduced(0, lists, scan.top, answer, "the summaries gave no lessons")]
        )


def _take_share(points: Sequence[Lesson], share: int) -> Sequence[Lesson]:
    """Return what a summary may take of the last call: its first points, at least one."""
    running = accumulate(estimate_tokens(point.text) for point in points)
    return points[: max(1, sum(size <= share for size in running))]
