"""How the insights of an iteration are dealt to curators: by the aggregator's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall, TokenBudget, Union, plan_scan
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.shuffle import Placement
from combee_dspy.strategies import StrategyContext

__all__ = ["Sharding"]

# The signature's own text, its output schema and the adapter's frame, rounded up.
_PROMPT_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class Sharding:
    """How insights become shards.

    Attributes:
        copies: Copies of each insight, p; 0 for one call that reads all of them (naive ACE).
        placement: How copies are placed (see :mod:`combee_dspy.shuffle`).
        fan_in: The most insights a call may take.
        window: How many shards a copy may travel.
        max_call_tokens: Estimated tokens that one call may take.
        name: The aggregator's name, for the events.
    """

    copies: int
    placement: Placement
    fan_in: int
    window: int | None
    max_call_tokens: int
    name: str

    @classmethod
    def of(cls, aggregator: Aggregator) -> Sharding:
        """Return how an aggregator deals: the shuffle and the shards of its scan, without its merges.

        Raises:
            ArgumentValueError: It is neither a scan nor a single call.
        """
        if isinstance(aggregator, SingleCall):
            return cls(0, "plain", 0, None, 0, aggregator.name)
        if isinstance(aggregator, (ParallelScan, Union)):
            return cls(
                aggregator.copies,
                aggregator.placement,
                aggregator.fan_in,
                aggregator.window,
                aggregator.max_call_tokens,
                aggregator.name,
            )
        remedy = "Give ParallelScan(…), or SingleCall() for one curator call over the whole batch."
        raise ArgumentValueError("aggregator", aggregator, "cannot be used with a playbook", remedy)

    def shards(self, tokens: Sequence[int], fixed: int, context: StrategyContext) -> list[tuple[int, ...]]:
        """Return the positions that each call reads.

        Args:
            tokens: Estimated tokens of each insight.
            fixed: Estimated tokens of what every call reads besides.
            context: Where chance comes from.
        """
        if not tokens:
            return []
        if self.copies == 0:
            return [tuple(range(len(tokens)))]
        # Where the playbook itself fills a call, some insights must still stand beside it.
        room = max(self.max_call_tokens - _PROMPT_TOKENS - fixed, self.max_call_tokens // 2)
        budget = TokenBudget(tuple(min(one, room) for one in tokens), room)
        plan = plan_scan(
            len(tokens),
            self.copies,
            self.fan_in,
            context.stream("shuffle"),
            self.placement,
            window=self.window,
            budget=budget,
        )
        return [node.sources for node in plan.levels[0]]
