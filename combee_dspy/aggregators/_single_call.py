"""The naive baseline: everything in one call."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from combee_dspy.aggregators._base import Aggregator, gathered
from combee_dspy.aggregators._prompts import RewriteInstruction, RewriteWithinConstraints
from combee_dspy.aggregators._scan import ScanState
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

    Args:
        max_call_tokens: Estimated tokens the call may take, the prompt included. Each reflection is
            then trimmed to an equal share, 64 tokens at least, with a warning each. ``None``: no
            limit, as in GEPA.
    """

    name: ClassVar[str] = "single-call"

    max_call_tokens: Annotated[int, Field(ge=1)] | None = None

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return the new instruction as ``rewrite``; none where the call failed."""
        items = await gathered(reflections)
        if not items:
            return Lessons(context.component)
        if self.max_call_tokens is not None:
            items = ScanState(context, self.max_call_tokens).trim_evenly(items)
        inputs: dict[str, Any] = {
            "current_instruction": context.text,
            "examples_with_feedback": render_records(items),
        }
        if context.notes:
            # This call writes the text itself, so what the text must respect is said to it.
            inputs["constraints"] = context.notes
        signature = RewriteWithinConstraints if context.notes else RewriteInstruction
        answer = await context.ask(signature, inputs, "read", 0, 0)
        written = getattr(answer, "new_instruction", None)
        rewrite = (written.strip() or None) if isinstance(written, str) else None
        empty = (
            answer.error
            if isinstance(answer, FailedCall)
            else "EmptyAnswer: the answer holds no instruction"
        )
        sources = tuple(sorted({item.index for item in items}))
        node = NodeOutput(1, 0, sources, (rewrite,) if rewrite else (), None if rewrite else empty)
        return Lessons(context.component, rewrite=rewrite, nodes=(node,))

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...]:
        """Return one shard that holds all."""
        return (tuple(range(n)),) if n else ()
