"""The paper's aggregator: shards at once, then a tree over their lessons (Combee §3.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.aggregators._base import Dealt, even_runs, together
from combee_dspy.aggregators._prompts import LearnFromExamples, MergeLessons
from combee_dspy.aggregators._scan import LESSON_TOKENS, Node, Question, Scan, data_room
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.strategies import StrategyContext, parameters


@parameters
class ParallelScan(Dealt):
    """Reads shards of reflections in parallel and merges their lessons level by level.

    n reflections are copied p times and dealt into k = ⌊√n⌋ shards (§3.1, §3.2), each read by one call as soon as its
    own are there; one call merges the k lists. Where that passes ``fan_in``, ``merge_fan_in`` or ``max_call_tokens``,
    there are more shards, and the fewest levels of merges that respect them. A shard's lessons are lost when its call
    fails; those already found cannot be: a merge that fails is done by code. The last merge is left to whoever reads
    all lessons in a call of its own, where the context says so.

    Args:
        copies: Copies of each reflection, p; 2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the paper.
        fan_in: The most reflections one call may take; merges have a limit of their own. 16 keeps the paper's ⌊√n⌋
            shards up to 56 reflections at two copies; larger batches get more shards rather than longer ones (see
            :class:`combee_dspy.aggregators.Union` for what that keeps; here the last merge is what loses). ``combee
            tune-scan`` measures what a model takes in.
        max_call_tokens: Estimated tokens one call may take, the prompt included. 24,000 leaves room for the answer in a
            32k context. A reflection may take a quarter of what the prompt leaves; longer ones are split or trimmed.
        max_lessons: The most lessons a shard's call may return; by default one for each reflection of a shard of 16. It
            bounds what a call writes and what the level above reads.
        window: How many shards a copy may travel, or ``None`` for no bound (see :func:`combee_dspy.shuffle.plan_shards`
            for which pairs can still meet).
        merge_fan_in: The most lists of lessons one call may merge; fewer where they are longer than a call. Lists are
            short: 32 keep two levels up to 256 reflections.
    """

    name: ClassVar[str] = "parallel-scan"

    merge_fan_in: Annotated[int, Field(ge=2)] = 32

    async def aggregate(self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext) -> Lessons:
        """Return the lessons of the root."""
        scan = Scan(context, self.max_call_tokens)
        question = Question(LearnFromExamples, {"most_lessons": self.max_lessons})
        await scan.read(reflections, self.shards(len(reflections), context) or (), question)
        while len(scan.top) > 1:
            await self._merge(scan)
        return scan.result()

    def mergeable(self) -> int:
        """Return ``merge_fan_in``, or what a call holds of lists as long as they may be beside a short instruction."""
        lists = max(2, data_room(self.max_call_tokens) // (self.max_lessons * LESSON_TOKENS))
        return min(self.merge_fan_in, lists)

    async def _merge(self, scan: Scan) -> None:
        """Add the next level: the fewest merges of consecutive lists that respect the limits, all in flight at once.

        A merge that fails or returns nothing is replaced by code: nothing found is lost. So is the last one where
        whoever gets the lessons reads them all in a call of its own, and a level in which no two lists fit one call.
        """
        sizes = [estimate_record_tokens(list(node.output.lessons)) for node in scan.top]
        runs = even_runs(sizes, scan.room, self.merge_fan_in)
        if len(runs) == len(sizes):
            scan.warn(0, f"no two of {len(sizes)} lists fit one call of {scan.room:,} tokens: joined by code")
            scan.join()
        elif len(runs) == 1 and scan.context.joined_later:
            scan.join()
        else:
            groups = [scan.top[first:last] for first, last in runs]
            answers = await together(_asked(scan, number, group) for number, group in enumerate(groups))
            level = [
                scan.reduced(number, [node.lessons for node in group], group, answer, "the merge returned no lessons")
                for number, (group, answer) in enumerate(zip(groups, answers, strict=True))
            ]
            scan.levels.append(level)


async def _asked(scan: Scan, number: int, children: Sequence[Node]) -> object | None:
    """Return the answer of a merge, or ``None`` where fewer than two children hold something."""
    lists = [list(child.output.lessons) for child in children if child.lessons]
    if len(lists) < 2:
        return None
    given = {"current_instruction": scan.context.text, "lesson_lists": lists}
    return await scan.context.ask(MergeLessons, given, "merge", len(scan.levels) + 1, number)
