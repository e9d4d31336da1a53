"""The naive baseline: everything in one call."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import ClassVar

from combee_dspy.aggregators._base import Aggregator, gathered
from combee_dspy.aggregators._prompts import RewriteInstruction, RewriteWithinConstraints
from combee_dspy.records import FailedCall, Lessons, NodeOutput, Reflection
from combee_dspy.reflections import render_records
from combee_dspy.strategies import StrategyContext, parameters


@parameters
class SingleCall(Aggregator):
    """Shows all reflections to one call, which writes a new instruction, as GEPA does.

    The baseline that a scan is measured against: one prompt that grows with the minibatch, and an
    answer as long as the instruction.

    Example:
        >>> import asyncio
        >>> from combee_dspy.aggregators import SingleCall
        >>> from combee_dspy.testing import arriving, context, reflections
        >>> async def learn():
        ...     return await SingleCall().aggregate(arriving(reflections(9)), context())
        >>> asyncio.run(learn()).rewrite is not None
        True
    """

    name: ClassVar[str] = "single-call"

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the new instruction as ``rewrite``; none where the call failed."""
        items = await gathered(reflections)
        if not items:
            return Lessons(context.component)
        inputs: dict[str, object] = {
            "current_instruction": context.text,
            "examples_with_feedback": render_records(items),
        }
        signature = RewriteInstruction
        if context.notes:
            # This call writes the text itself, so it must know what the text must respect.
            signature, inputs["constraints"] = RewriteWithinConstraints, context.notes
        answer = await context.ask(signature, inputs, "read", 0, 0)
        rewrite, failed = None, "EmptyAnswer: the answer holds no instruction"
        if isinstance(answer, FailedCall):
            failed = answer.error
        elif isinstance(text := answer.get("new_instruction"), str):
            rewrite = text.strip() or None
        sources = tuple(item.index for item in items)
        node = NodeOutput(1, 0, sources, (rewrite,) if rewrite else (), None if rewrite else failed)
        return Lessons(context.component, rewrite=rewrite, nodes=(node,))

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...]:
        """Return one shard that holds all."""
        return (tuple(range(n)),) if n else ()
