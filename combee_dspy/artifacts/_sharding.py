"""How the insights of an iteration are dealt to curators: by the aggregator's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall, Union, plan_scan
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

    def plan(self, n: int, share: float, context: StrategyContext) -> list[tuple[int, ...]]:
        """Return which positions of a minibatch each shard reads, before anything of it is known.

        So a shard can be asked about as soon as its own reflections are there. A trajectory that
        teaches nothing has no insight; where only a share of them did so far, a shard takes
        more positions, so that it is expected to read as many insights as it may.

        Args:
            n: Trajectories in the minibatch.
            share: The share of trajectories that had an insight so far; 1 where nothing is known.
            context: Where chance comes from.
        """
        if n < 1:
            return []
        if self.copies == 0:
            return [tuple(range(n))]
        fan_in = max(2, min(n * self.copies, int(self.fan_in / share) if share > 0 else n))
        stream = context.stream("shuffle")
        plan = plan_scan(n, self.copies, fan_in, stream, self.placement, window=self.window)
        return [node.sources for node in plan.levels[0]]

    def pieces(self, tokens: Sequence[int], fixed: int) -> list[tuple[int, ...]]:
        """Return how a shard is cut into calls: the fewest even pieces that keep the limits of one call.

        Args:
            tokens: Estimated tokens of each of its insights.
            fixed: Estimated tokens of what every call reads besides.
        """
        if not tokens:
            return []
        if self.copies == 0:
            return [tuple(range(len(tokens)))]
        # Where the playbook itself fills a call, some insights must still stand beside it.
        room = max(self.max_call_tokens - _PROMPT_TOKENS - fixed, self.max_call_tokens // 2)
        n = len(tokens)
        cuts: list[tuple[int, ...]] = []
        for count in range(-(-n // self.fan_in), n + 1):
            cuts = [tuple(range(n * one // count, n * (one + 1) // count)) for one in range(count)]
            if all(sum(tokens[place] for place in cut) <= room for cut in cuts):
                break
        return cuts
