"""Parallel readers of shards, whose lessons code joins: a reduce without an LM."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.aggregators._dealing import Dealt
from combee_dspy.aggregators._prompts import AddLessons
from combee_dspy.aggregators._reading import ShardReader
from combee_dspy.aggregators._scan import Scan
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext, parameters


@parameters
class Union(Dealt):
    """Reads shards of reflections in parallel; each returns lines to add, and code joins the lines.

    This is a map and a join by code: no scan. It is the paper's map and shuffle without its reduce:
    no LM call reads what another one wrote. There are ⌊√n⌋ shards, or as many as keep the fan-in.
    Their lists are joined in shard order; near-duplicates become one lesson with the sources of all
    its wordings and the longest of them. So no merge can lose a lesson, and none weighs lessons
    against each other: two that contradict each other both stay.

    The operator decides how long a list the text may hold (see
    :class:`combee_dspy.operators.Insert`). Its nodes are the shards at level 1 and the joined list
    at level 2.

    Example:
        >>> import asyncio
        >>> from combee_dspy.aggregators import Union
        >>> from combee_dspy.testing import arriving, context, reflections
        >>> async def learn():
        ...     return await Union(fan_in=8).aggregate(arriving(reflections(9)), context())
        >>> len(asyncio.run(learn()).lessons)
        6

    Args:
        copies: Copies of each reflection at most, p, and fewer than the shards that one may reach;
            2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the
            paper.
        fan_in: The most reflections one call may take. 16 keeps the paper's ⌊√n⌋ shards up to 56
            reflections at two copies; larger batches get more shards rather than longer ones. The
            number was chosen on the simulated service (``docs/results/quality.md``); no model has
            confirmed it.
        max_call_tokens: Estimated tokens one call may take, the prompt included.
        max_lessons: The most lines a shard may return. 32 are two for each reflection of a full
            shard of 16.
        window: How many shards a copy may travel, or ``None`` for no bound; for shuffled shards. 4:
            from eight shards on (57 reflections) they are dealt in blocks of four to seven, so that
            an early shard need not wait for the last rollout. Of all pairs of reflections about one
            in as many as there are blocks can then still meet in a shard: at 240, one in seven.
        similarity: Jaccard similarity of word pairs from which two lessons count as one, in (0, 1].
            0.8 lets one word in about seventeen differ.
    """

    name: ClassVar[str] = "union"

    fan_in: Annotated[int, Field(ge=2)] = 16
    max_lessons: Annotated[int, Field(ge=1)] = 32
    window: Annotated[int, Field(ge=1)] | None = 4
    similarity: Annotated[float, Field(gt=0, le=1)] = 0.8

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the joined lines."""
        return (await self.scanned(reflections, context)).result()

    async def scanned(
        self,
        reflections: Sequence[Awaitable[Reflection | None]],
        context: StrategyContext,
        *,
        finds_sources: bool = False,
    ) -> Scan:
        """Return the shards as they are read, and their lists joined.

        With ``finds_sources`` each lesson has its own examples (see :class:`ShardReader`).
        """
        scan = Scan(context, self.max_call_tokens)
        reader = ShardReader(scan, AddLessons, self.max_lessons, finds_sources=finds_sources)
        await reader.read(reflections, self.shards(len(reflections), context))
        if scan.levels:
            scan.join(self.similarity)
        return scan
