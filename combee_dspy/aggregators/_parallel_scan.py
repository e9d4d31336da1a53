"""The paper's aggregator: shards at once, then a tree over their lessons (Combee §3.1)."""

from __future__ import annotations

from typing import ClassVar

from combee_dspy.aggregators._plan import merge_levels
from combee_dspy.aggregators._reading import LEARN, LESSON_TOKENS, Asking, Held, check_call_tokens, check_least
from combee_dspy.aggregators._scan import merged_tree
from combee_dspy.aggregators._sharded import Dealt
from combee_dspy.aggregators._stream import Course
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.shuffle import Placement
from combee_dspy.strategies import StrategyContext

__all__ = ["ParallelScan"]


class ParallelScan(Dealt):
    """Reads shards of reflections in parallel and merges their lessons level by level.

    The plan is :func:`combee_dspy.aggregators.plan_scan`; all calls of a level
    are in flight at once. See the module's functions for what happens when a
    call fails: a shard's lessons can be lost, those already found cannot. The last merge
    is left to an operator that reads all lessons in a call of its own, where only such operators read them.

    Args:
        copies: Copies of each reflection, p; 2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the paper.
        fan_in: The most reflections one call may take; merges have a limit of their own. 16 keeps the
            paper's ⌊√n⌋ shards up to 56 reflections at two copies; larger batches get more shards
            rather than longer ones (see :class:`combee_dspy.aggregators.Union` for what that keeps;
            here the last merge is what loses). ``combee tune-scan`` measures what a model takes in.
        merge_fan_in: The most lists of lessons one call may merge; fewer where so many of
            ``max_lessons`` would not fit beside the instruction. Lists are short: 32 keep two
            levels up to 256 reflections, as long as the instruction takes less than about 2,500 tokens.
        max_call_tokens: Estimated tokens one call may take, the prompt included.
            24,000 leaves room for the answer in a 32k context. A reflection may
            take a quarter of what the prompt leaves; longer ones are split or trimmed.
        max_lessons: The most lessons a shard's call may return; by default one for each reflection
            of a shard of 16. It bounds what a call writes and what the level above reads.
        window: How many shards a copy may travel, or ``None`` for no bound.
    """

    name: ClassVar[str] = "parallel-scan"

    def __init__(
        self,
        copies: int = 2,
        placement: Placement = "distinct",
        fan_in: int = 16,
        max_call_tokens: int = 24_000,
        max_lessons: int = 16,
        window: int | None = None,
        merge_fan_in: int = 32,
    ) -> None:
        self.copies = copies
        self.placement: Placement = placement
        self.fan_in = fan_in
        self.max_call_tokens = max_call_tokens
        self.max_lessons = max_lessons
        self.window = window
        self.merge_fan_in = merge_fan_in

    def validate(self) -> None:
        """Check the parameters, before anything is spent.

        Raises:
            ArgumentValueError: A parameter is out of its range.
        """
        check_least(self, {"merge_fan_in": 2, "max_lessons": 1})
        self._check_deal()
        check_call_tokens(self.max_call_tokens)

    def lists(self, room: int) -> int:
        """Return how many lists of lessons one call merges.

        Args:
            room: Estimated tokens that they may take together.
        """
        return min(self.merge_fan_in, max(2, room // (self.max_lessons * LESSON_TOKENS)))

    def _course(self, size: int, room: int, context: StrategyContext, tokens: int | None) -> Course:
        shards = self._shards(size, room, context, tokens)
        fan_in = self.lists(room)
        above = list(merge_levels(len(shards), fan_in))
        called = above[:-1] if context.joined_later else above
        planned = (len(shards), *(sum(len(node.sources) > 1 for node in nodes) for nodes in called))

        def merge(told: ScanTeller, read: list[Held]) -> list[list[Held]]:
            return merged_tree(told, read, fan_in, room)

        return Course(shards, planned, Asking(LEARN, self.max_lessons), merge)
