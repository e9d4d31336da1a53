"""What aggregators share whose shards are dealt by the paper's shuffle, from the number of reflections alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from combee_dspy.aggregators._base import Aggregator, CallCapacity
from combee_dspy.aggregators._plan import shard_count
from combee_dspy.aggregators._scan import CallTokens
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.shuffle import Placement, plan_shards
from combee_dspy.strategies import StrategyContext, parameters

__all__ = ["Dealt"]


@parameters
class Dealt(Aggregator):
    """An aggregator over shards that are dealt from their number; each of its children says what the parameters are."""

    copies: Annotated[int, Field(ge=1)] = 2
    placement: Placement = "distinct"
    fan_in: Annotated[int, Field(ge=2)] = 16
    max_call_tokens: CallTokens = 24_000
    max_lessons: Annotated[int, Field(ge=1)] = 16
    window: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.placement == "plain" and self.window is not None and self.copies > self.fan_in * self.window:
            problem = f"copies of one reflection do not fit into {self.window} shards of {self.fan_in}"
            raise ArgumentValueError("copies", self.copies, problem, "Give a larger window or fan_in, or window=None.")

    def shards(self, n: int, context: StrategyContext) -> tuple[tuple[int, ...], ...] | None:
        """Return the positions in each shard (see :func:`combee_dspy.aggregators.shard_count`)."""
        if n == 0:
            return ()
        merged = self.capacity().merge_fan_in
        k = shard_count(n, self.copies, self.fan_in, merged, self.placement, self.window)
        dealt = plan_shards(n, self.copies, k, context.stream("shuffle"), self.placement, self.window)
        # A window rounds, which can leave a shard without reflections: nothing to call.
        return tuple(shard for shard in dealt if shard)

    def capacity(self) -> CallCapacity:
        """Return the limits by which shards are dealt."""
        return CallCapacity(self.max_call_tokens, self.fan_in, None, self.copies)
