"""The paper's aggregator: shards at once, then a tree over their lessons (Combee §3.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.aggregators._base import together
from combee_dspy.aggregators._coverage import Coverage
from combee_dspy.aggregators._dealing import Dealt, even_runs
from combee_dspy.aggregators._lessons import join_lessons
from combee_dspy.aggregators._prompts import LearnFromExamples, MergeLessons
from combee_dspy.aggregators._reading import ShardReader
from combee_dspy.aggregators._scan import Node, Scan, sources_below
from combee_dspy.records import Lesson, Lessons, Reflection
from combee_dspy.reflections import estimate_record_tokens, normalised
from combee_dspy.strategies import StrategyContext, parameters

# A merge is warned of where it holds less than this share of each of most lessons.
_HELD, _MOST_LOST = 0.5, 0.5


@parameters
class ParallelScan(Dealt):
    """Reads shards of reflections in parallel and merges their lessons level by level.

    n reflections are copied p = 2 times and dealt into k = ⌊√n⌋ shards (§3.1, §3.2), each read by
    one call as soon as its own are there; one call merges the k lists. Nothing but
    ``max_call_tokens`` bounds a call by default: a shard that takes more is read by the fewest
    calls that it fits, and lists that take more are merged by the fewest levels. A call that fails
    loses the lessons of its shard; a merge that fails loses nothing, since code joins its lists. A
    merge may drop lessons: where most of them are gone the run warns, and the report shows where
    each reflection was lost. Where the host reads all lessons in a call of its own
    (``context.joined_later``), code makes the last merge.

    It differs from the paper's in where copies lie: see ``placement``.

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
            paper, where both copies of about one reflection in k are in one shard.
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
    """

    name: ClassVar[str] = "parallel-scan"

    max_lessons: Annotated[int, Field(ge=1)] | None = None

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the lessons of the root."""
        scan = Scan(context, self.max_call_tokens)
        shards = self.shards(len(reflections), context)
        most = self.max_lessons or max(map(len, shards), default=1)
        await ShardReader(scan, LearnFromExamples, most).read(reflections, shards)
        while len(scan.top) > 1:
            await _merge_level(scan)
        return scan.result()


async def _merge_level(scan: Scan) -> None:
    """Add the next level: the fewest merges of consecutive lists that fit a call.

    Code joins the lists where no two of them fit one call, and where the host reads all lessons in
    a call of its own: the last merge would write them twice.
    """
    lists = scan.top
    runs = even_runs([estimate_record_tokens(_texts(node.lessons)) for node in lists], scan.room)
    if len(runs) == len(lists):
        problem = f"no two of {len(lists)} lists fit one call of {scan.room:,} tokens"
        scan.warn(0, f"{problem}: joined by code")
        scan.join()
    elif len(runs) == 1 and scan.context.joined_later:
        scan.join()
    else:
        groups = [lists[first:last] for first, last in runs]
        merges = (_merge(scan, number, group) for number, group in enumerate(groups))
        scan.levels.append(await together(merges))


async def _merge(scan: Scan, number: int, children: Sequence[Node]) -> Node:
    """Have a call merge the lists of some nodes; code joins them where the call returns none."""
    sources = sources_below(children)
    joined = join_lessons(child.lessons for child in children)
    lists = [_texts(child.lessons) for child in children if child.lessons]
    if len(lists) < 2:
        return Node(joined, sources)
    inputs = {"current_instruction": scan.context.text, "lesson_lists": lists}
    answer = await scan.context.ask(MergeLessons, inputs, "merge", len(scan.levels) + 1, number)
    texts, failed = scan.texts_in(number, answer, sum(map(len, lists)))
    if not texts:
        return Node(joined, sources, failed or "EmptyAnswer: the merge returned no lessons")
    _warn_of_losses(scan, number, joined, texts)
    # A lesson that the merge left as it was has its own sources, a reworded one all of them.
    before = {normalised(lesson.text): lesson.sources for lesson in joined}
    merged = (Lesson(text, before.get(normalised(text), sources)) for text in texts)
    return Node(tuple(merged), sources)


def _warn_of_losses(scan: Scan, number: int, before: Sequence[Lesson], after: list[str]) -> None:
    """Warn of a merge that dropped most lessons, by their words."""
    shares, _ = Coverage([*_texts(before), *after]).best(_texts(before), after)
    lost = int((shares < _HELD).sum())
    if lost > _MOST_LOST * len(before):
        scan.warn(number, f"the merge lost {lost} of {len(before)} lessons, by their words")


def _texts(lessons: Sequence[Lesson]) -> list[str]:
    return [lesson.text for lesson in lessons]
