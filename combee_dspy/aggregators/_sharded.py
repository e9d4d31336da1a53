"""What aggregators over shards share: how a scan is planned, begun, fed and finished."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from combee_dspy.aggregators._base import Aggregator, Scan
from combee_dspy.aggregators._plan import plan_scan, shard_count
from combee_dspy.aggregators._reading import call_room, check_least, fit_limit
from combee_dspy.aggregators._stream import Course, ShardScan
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import fit_reflections
from combee_dspy.shuffle import PLACEMENTS, Placement
from combee_dspy.strategies import StrategyContext

__all__ = ["Dealt", "Sharded"]


class Sharded(Aggregator):
    """What aggregators over shards share: a scan is begun, fed and finished.

    Attributes:
        max_call_tokens: Estimated tokens one call may take, the prompt included.
    """

    max_call_tokens: int

    def aggregate(self, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
        """Return what the shards teach, with the output of every node.

        Raises:
            ArgumentValueError: A parameter of this strategy is out of range.
        """
        self.validate()
        if not reflections:
            return Lessons(context.component)
        scan = self.begin(len(reflections), context)
        if scan is None:
            scan, reflections = self._begin_over(reflections, context)
        for position, reflection in enumerate(reflections):
            scan.feed(position, reflection)
        return scan.finish()

    def begin(self, size: int, context: StrategyContext, *, tokens: int | None = None) -> Scan | None:
        """Begin a scan whose reflections are still to come; see :meth:`combee_dspy.aggregators.Aggregator.begin`."""
        self.validate()
        if size < 0:
            raise ArgumentValueError("size", size, "is negative", "Give the number of positions.")
        if tokens is not None and tokens < 1:
            raise ArgumentValueError("tokens", tokens, "is below 1", "Give None where it is not known.")
        room = call_room(self.max_call_tokens, context)
        course = self._course(size, room, context, tokens)
        return None if course is None else ShardScan(self.name, course, size, room, context)

    @abstractmethod
    def _course(self, size: int, room: int, context: StrategyContext, tokens: int | None) -> Course | None:
        """Plan a scan from its size alone, or return ``None`` where the reflections decide its shards."""

    def _course_over(self, items: Sequence[Reflection], room: int, context: StrategyContext) -> Course:
        """Plan a scan of reflections that are there, each of which fits its share of a call."""
        raise NotImplementedError(f"{type(self).__name__}._course left the plan to _course_over, which is missing")

    def _begin_over(
        self, reflections: Sequence[Reflection], context: StrategyContext
    ) -> tuple[Scan, Sequence[Reflection]]:
        room = call_room(self.max_call_tokens, context)
        items = fit_reflections(reflections, fit_limit(room), context.component, context.emit, context.iteration)
        course = self._course_over(items, room, context)
        return ShardScan(self.name, course, len(items), room, context, fitted=True), items


class Dealt(Sharded):
    """What aggregators share whose shards are dealt by the paper's shuffle, from the number of reflections alone.

    Attributes:
        copies: Copies of each reflection, p.
        placement: How copies are placed.
        fan_in: The most reflections one call may take.
        window: How many shards a copy may travel, or ``None``.
    """

    copies: int
    placement: Placement
    fan_in: int
    window: int | None

    def _check_deal(self) -> None:
        """Check what decides the shards.

        Raises:
            ArgumentValueError: A parameter is out of its range, or no number of shards is small enough.
        """
        check_least(self, {"copies": 1, "fan_in": 2})
        if self.placement not in PLACEMENTS:
            raise ArgumentValueError("placement", self.placement, "is unknown", f"Give {' or '.join(PLACEMENTS)}.")
        if self.window is None:
            return
        check_least(self, {"window": 1})
        if self.placement == "plain" and self.copies > self.fan_in * self.window:
            problem = f"copies of one reflection do not fit into {self.window} shards of {self.fan_in}"
            raise ArgumentValueError("copies", self.copies, problem, "Give a larger window or fan_in, or window=None.")

    def reads(self, size: int) -> int:
        """Return the shards of the plan; each counts once, also where its reflections need several calls, or none."""
        return shard_count(size, self.copies, self.fan_in, self.placement, self.window) if size else 0

    def _shards(self, size: int, room: int, context: StrategyContext, tokens: int | None) -> list[tuple[int, ...]]:
        """Return the shards of a plan that is made before any reflection is there (see :func:`plan_scan`).

        Args:
            size: Positions.
            room: Estimated tokens that the data of one call may take.
            context: Where chance comes from.
            tokens: What a reflection is expected to take, or ``None``.
        """
        fan_in = self.fan_in
        if tokens is not None:
            # What takes more than its share of a call is split, so no reflection counts for more.
            fan_in = max(min(fan_in, room // min(tokens, fit_limit(room))), 2)
        plan = plan_scan(size, self.copies, fan_in, context.stream("shuffle"), self.placement, window=self.window)
        return [node.sources for node in plan.levels[0]] if plan.levels else []
