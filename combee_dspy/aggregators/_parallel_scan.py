"""The paper's aggregator: shards at once, then a tree over their lessons (Combee §3.1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from combee_dspy.aggregators._base import Aggregator
from combee_dspy.aggregators._plan import ScanPlan, TokenBudget, plan_scan
from combee_dspy.aggregators._scan import run_scan
from combee_dspy.events import ScanFinished, ScanStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import estimate_record_tokens, estimate_tokens, fit_reflections
from combee_dspy.shuffle import PLACEMENTS, Placement
from combee_dspy.strategies import StrategyContext

__all__ = ["ParallelScan"]

# The signature's own text, its output schema and the adapter's frame, rounded up.
_PROMPT_TOKENS = 1_000
_LESSON_TOKENS = 40
# A reflection may take this part of a call, so that every shard still compares several.
_SHARE = 4
_MIN_CALL_TOKENS = 2_000


class ParallelScan(Aggregator):
    """Reads shards of reflections in parallel and merges their lessons level by level.

    The plan is :func:`combee_dspy.aggregators.plan_scan`; all calls of a level
    are in flight at once. See the module's functions for what happens when a
    call fails: a shard's lessons can be lost, those already found cannot.

    Args:
        copies: Copies of each reflection, p; 2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the paper.
        fan_in: The most reflections, or lists of lessons, one call may take. The
            default of 32 keeps two levels up to 512 reflections at two copies
            (F²/p) and shards of ⌈2√n⌉ as in the paper up to 256.
        max_call_tokens: Estimated tokens one call may take, the prompt included.
            24,000 leaves room for the answer in a 32k context. A reflection may
            take a quarter of what the prompt leaves; longer ones are split or trimmed.
        max_lessons: The most lessons a call may return; by default one for each reflection
            of a full shard. It bounds what a call writes and what the level above reads.
        window: How many shards a copy may travel, or ``None`` for no bound.
    """

    name: ClassVar[str] = "parallel-scan"

    def __init__(
        self,
        copies: int = 2,
        placement: Placement = "distinct",
        fan_in: int = 32,
        max_call_tokens: int = 24_000,
        max_lessons: int = 32,
        window: int | None = None,
    ) -> None:
        self.copies = copies
        self.placement: Placement = placement
        self.fan_in = fan_in
        self.max_call_tokens = max_call_tokens
        self.max_lessons = max_lessons
        self.window = window

    def validate(self) -> None:
        """Check the parameters, before anything is spent.

        Raises:
            ArgumentValueError: A parameter is out of its range.
        """
        for name, least in (("copies", 1), ("fan_in", 2)):
            if getattr(self, name) < least:
                raise ArgumentValueError(name, getattr(self, name), f"is below {least}", f"Give at least {least}.")
        if self.placement not in PLACEMENTS:
            raise ArgumentValueError("placement", self.placement, "is unknown", f"Give {' or '.join(PLACEMENTS)}.")
        if self.max_lessons < 1:
            raise ArgumentValueError("max_lessons", self.max_lessons, "is below 1", "Let a shard return at least one.")
        if self.max_call_tokens < _MIN_CALL_TOKENS:
            problem = f"is below {_MIN_CALL_TOKENS:,}"
            raise ArgumentValueError("max_call_tokens", self.max_call_tokens, problem, "Give room for prompt and data.")

    def aggregate(self, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
        """Return the root's lessons, with the output of every node.

        Raises:
            ArgumentValueError: A parameter of this strategy is out of range.
        """
        self.validate()
        if not reflections:
            return Lessons(context.component)
        started = time.monotonic()
        # Where the instruction itself fills a call, some examples must still stand beside it.
        prompt = _PROMPT_TOKENS + estimate_tokens(context.text)
        room = max(self.max_call_tokens - prompt, self.max_call_tokens // 2)
        items = fit_reflections(reflections, room // _SHARE, context.component, context.emit, context.iteration)
        plan = self._plan(items, room, context)
        context.emit(
            ScanStarted(
                iteration=context.iteration,
                component=context.component,
                aggregator=self.name,
                reflections=len(reflections),
                levels=plan.calls_per_level,
            )
        )
        levels = run_scan(plan, items, context, room=room, most=self.max_lessons)
        nodes = tuple(held.output for level in levels for held in level)
        lessons = levels[-1][0].lessons
        context.emit(
            ScanFinished(
                iteration=context.iteration,
                component=context.component,
                aggregator=self.name,
                nodes=nodes,
                lessons=tuple(lesson.text for lesson in lessons),
                seconds=time.monotonic() - started,
            )
        )
        return Lessons(context.component, lessons=lessons, nodes=nodes)

    def _plan(self, items: Sequence[Reflection], room: int, context: StrategyContext) -> ScanPlan:
        # Media are kept even where they pass the limit: such a reflection gets a shard of its own.
        tokens = tuple(min(estimate_record_tokens(item.record), room) for item in items)
        return plan_scan(
            len(items),
            self.copies,
            self.fan_in,
            context.stream("shuffle"),
            self.placement,
            window=self.window,
            merge_fan_in=max(2, room // (self.max_lessons * _LESSON_TOKENS)),
            budget=TokenBudget(tokens, room),
        )
