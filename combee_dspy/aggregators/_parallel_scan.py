"""The paper's aggregator: shards at once, then a tree over their lessons (Combee §3.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, ClassVar

import dspy
from pydantic import Field

from combee_dspy.aggregators._base import Dealt, even_runs, together
from combee_dspy.aggregators._prompts import LearnFromExamples, MergeLessons
from combee_dspy.aggregators._reading import ReadingTask
from combee_dspy.aggregators._scan import Node, ScanState
from combee_dspy.records import FailedCall, Lessons, Reflection
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.strategies import StrategyContext, parameters


@parameters
class ParallelScan(Dealt):
    """Reads shards of reflections in parallel and merges their lessons level by level.

    n reflections are copied p = 2 times and dealt into k = ⌊√n⌋ shards (§3.1, §3.2), each read by
    one call as soon as its own are there; one call merges the k lists. Nothing but
    ``max_call_tokens`` bounds a call by default: a shard that takes more is read by the fewest
    calls that it fits, and lists that take more are merged by the fewest levels. A shard's lessons
    are lost when its call fails; those already found cannot be: a merge that fails is done by code.
    The last merge is left to whoever reads all lessons in a call of its own, where the context says
    so.

    Of the paper's it differs in where copies lie: see ``placement``.

    Example:
        >>> import asyncio
        >>> from combee_dspy.aggregators import ParallelScan
        >>> from combee_dspy.testing import arriving, context, reflections
        >>> async def learn():
        ...     return await ParallelScan(copies=1).aggregate(arriving(reflections(9)), context())
        >>> [node.level for node in asyncio.run(learn()).nodes]
        [1, 1, 1, 2]

    Args:
        copies: Copies of each reflection at most, p, and fewer than the shards that one may reach;
            2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the
            paper, where both copies of about one reflection in k stand in one shard.
        fan_in: The most reflections one call may take, or ``None`` for no number: tokens decide.
            With a number, longer batches get more shards rather than longer ones. ``combee
            tune-scan`` measures what a model takes in.
        max_call_tokens: Estimated tokens one call may take, the prompt included. 24,000 leaves room
            for the answer in a 32k context. A reflection may take a quarter of what the prompt
            leaves; longer ones are split or trimmed.
        max_lessons: The most lessons a shard's call may return; ``None`` for one for each
            reflection of the longest shard. It bounds what a call writes and what the level above
            reads.
        window: How many shards a copy may travel, or ``None`` for no bound (see
            :func:`combee_dspy.shuffle.plan_shards` for which pairs can still meet).
        merge_fan_in: The most lists of lessons one call may merge, or ``None`` for no number:
            tokens decide. With a number there are fewer, longer shards where that spares a level of
            merges.
    """

    name: ClassVar[str] = "parallel-scan"

    max_lessons: Annotated[int, Field(ge=1)] | None = None
    merge_fan_in: Annotated[int, Field(ge=2)] | None = None

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the lessons of the root."""
        scan = ScanState(context, self.max_call_tokens)
        shards = self.shards(len(reflections), context)
        most = self.max_lessons or max(map(len, shards), default=1)
        await scan.read(reflections, shards, ReadingTask(LearnFromExamples, {"most_lessons": most}))
        while len(scan.top) > 1:
            await self._merge(scan)
        return scan.result()

    def mergeable(self) -> int | None:
        """Return ``merge_fan_in``."""
        return self.merge_fan_in

    async def _merge(self, scan: ScanState) -> None:
        """Add the next level: the fewest merges of consecutive lists that respect the limits.

        A merge that fails or returns nothing is replaced by code: nothing found is lost. So is the
        last one where whoever gets the lessons reads them all in a call of its own, and a level in
        which no two lists fit one call.
        """
        sizes = [estimate_record_tokens(list(node.output.lessons)) for node in scan.top]
        runs = even_runs(sizes, scan.room, self.merge_fan_in)
        if len(runs) == len(sizes):
            scan.warn(
                0,
                f"no two of {len(sizes)} lists fit one call of {scan.room:,} tokens: joined by"
                " code",
            )
            scan.join()
        elif len(runs) == 1 and scan.context.joined_later:
            scan.join()
        else:
            groups = [scan.top[first:last] for first, last in runs]
            answers = await together(
                _ask_merge(scan, number, group) for number, group in enumerate(groups)
            )
            level = [
                scan.reduced(
                    number,
                    [node.lessons for node in group],
                    group,
                    answer,
                    "the merge returned no lessons",
                )
                for number, (group, answer) in enumerate(zip(groups, answers, strict=True))
            ]
            scan.levels.append(level)


async def _ask_merge(
    scan: ScanState, number: int, children: Sequence[Node]
) -> dspy.Prediction | FailedCall | None:
    """Return the answer of a merge, or ``None`` where fewer than two children hold something."""
    lists = [list(child.output.lessons) for child in children if child.lessons]
    if len(lists) < 2:
        return None
    inputs = {"current_instruction": scan.context.text, "lesson_lists": lists}
    return await scan.context.ask(MergeLessons, inputs, "merge", len(scan.levels) + 1, number)
