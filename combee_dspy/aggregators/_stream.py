"""A scan over shards, fed as reflections come: each shard is read once its own are there, and code numbers the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from combee_dspy.aggregators._base import ReadyShard, Scan
from combee_dspy.aggregators._reading import Asking, Held, ask, fit_limit, heard, outputs
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.events import Event
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import estimate_record_tokens, fit_reflections
from combee_dspy.strategies import StrategyContext

__all__ = ["Course", "ShardScan", "split_calls"]

Merge = Callable[[ScanTeller, list[Held]], list[list[Held]]]
"""Takes what level 1 holds, at least one node; returns the levels above it, none where one node is all."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a scan over shards does.

    Attributes:
        shards: Positions of the reflections of each shard.
        levels: LM calls per level, as planned.
        asking: What is asked about a shard.
        merge: What is made of the answers.
    """

    shards: Sequence[tuple[int, ...]]
    levels: tuple[int, ...]
    asking: Asking
    merge: Merge


class ShardScan(Scan):
    """A scan over shards. See :class:`combee_dspy.aggregators.Scan` for its verbs.

    A reflection that takes more than its share of a call is split or trimmed
    when it is fed. Nodes of level 1 are numbered when all are read, in the order
    of the shards and of the calls of each, so no number depends on what came
    first; for the same reason events on reflections and nodes are emitted then.
    ``ScanStarted`` is emitted by the first read, which also starts the clock.

    Args:
        name: The aggregator's name.
        course: What to do.
        size: Positions.
        room: Estimated tokens that the data of one call may take.
        context: The way to the LM.
        fitted: Whether what is fed has been made to fit, shard by shard.
    """

    def __init__(
        self, name: str, course: Course, size: int, room: int, context: StrategyContext, *, fitted: bool = False
    ) -> None:
        self._name = name
        self._course = course
        self._size = size
        self._room = room
        self._context = context
        self._fitted = fitted
        self._told: ScanTeller | None = None
        self._changed = threading.Condition()
        self._fed: dict[int, tuple[Reflection, ...]] = {}
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._trimmed: dict[int, list[Event]] = {}
        self._missing = [len(set(shard)) for shard in course.shards]
        self._holders: list[list[int]] = [[] for _ in range(size)]
        for number, shard in enumerate(course.shards):
            for position in dict.fromkeys(shard):
                self._holders[position].append(number)
        self._ready: dict[int, ReadyShard] = {}
        self._claimed: set[int] = set()
        self._answers: dict[int, Sequence[Any]] = {}
        self._finished = False

    def feed(self, position: int, reflection: Reflection | None) -> tuple[ReadyShard, ...]:
        """Take one position's reflection; see :meth:`combee_dspy.aggregators.Scan.feed`."""
        trimmed: list[Event] = []
        parts = () if reflection is None else tuple(self._parts(reflection, trimmed))
        # Media are kept even where they pass the limit: such a reflection gets a call of its own.
        tokens = () if self._fitted else tuple(min(estimate_record_tokens(part.record), self._room) for part in parts)
        with self._changed:
            if not 0 <= position < self._size or position in self._fed or self._finished:
                problem = "was fed before" if position in self._fed else f"is no position of {self._size} left to feed"
                raise ArgumentValueError("position", position, problem, "Feed each position once, before the end.")
            self._fed[position], self._tokens[position], self._trimmed[position] = parts, tokens, trimmed
            completed = []
            for number in self._holders[position]:
                self._missing[number] -= 1
                if not self._missing[number]:
                    completed.append(number)
            ready = [shard for shard in map(self._shard, completed) if shard.calls]
            self._ready.update((shard.position, shard) for shard in ready)
        return tuple(ready)

    def read(self, shard: ReadyShard) -> None:
        """Read a shard; see :meth:`combee_dspy.aggregators.Scan.read`."""
        with self._changed:
            mine = [shard.position] if shard.position in self._ready and shard.position not in self._claimed else []
            self._claimed.update(mine)
        self._read(mine)

    def finish(self) -> Lessons:
        """Read the rest and join; see :meth:`combee_dspy.aggregators.Scan.finish`."""
        for position in range(self._size):
            if position not in self._fed:
                self.feed(position, None)
        with self._changed:
            self._finished = True
        while mine := self._rest():
            self._read(mine)
        return self._joined()

    def _rest(self) -> list[int]:
        """Claim what nobody has read; where all is claimed, wait: a read that raises gives its shards back."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready.keys() != self._claimed or self._claimed == self._answers.keys())
            mine = sorted(self._ready.keys() - self._claimed)
            self._claimed.update(mine)
            return mine

    def _parts(self, reflection: Reflection, trimmed: list[Event]) -> list[Reflection]:
        if self._fitted:
            return [reflection]
        context = self._context
        return fit_reflections(
            [reflection], fit_limit(self._room), context.component, trimmed.append, context.iteration
        )

    def _shard(self, number: int) -> ReadyShard:
        positions = self._course.shards[number]
        items = [part for position in positions for part in self._fed[position]]
        if self._fitted:
            return ReadyShard(number, (tuple(items),) if items else ())
        tokens = [size for position in positions for size in self._tokens[position]]
        return ReadyShard(number, split_calls(items, tokens, self._room))

    def _read(self, numbers: Sequence[int]) -> None:
        """Read shards that this thread has claimed."""
        if not numbers:
            return
        calls = [call for number in numbers for call in self._ready[number].calls]
        found: Sequence[Any] | None = None
        self._start()
        try:
            found = ask(self._context, calls, self._course.asking)
        finally:
            with self._changed:
                if found is None:
                    self._claimed.difference_update(numbers)
                else:
                    rest = iter(found)
                    for number in numbers:
                        self._answers[number] = [next(rest) for _ in self._ready[number].calls]
                self._changed.notify_all()

    def _start(self) -> None:
        with self._changed:
            if self._told is not None:
                return
            self._told = ScanTeller(self._context, self._name)
        self._told.started(self._size, self._course.levels)

    def _joined(self) -> Lessons:
        component = self._context.component
        if self._told is None:
            return Lessons(component)
        for event in chain.from_iterable(self._trimmed[position] for position in range(self._size)):
            self._context.emit(event)
        order = sorted(self._ready)
        calls = [call for number in order for call in self._ready[number].calls]
        answers = [answer for number in order for answer in self._answers[number]]
        read = heard(self._told, calls, answers, self._course.asking)
        levels = [read, *self._course.merge(self._told, read)]
        nodes, lessons = outputs(levels), levels[-1][0].lessons
        self._told.finished(nodes, lessons)
        return Lessons(component, lessons=lessons, nodes=nodes)


def split_calls(items: Sequence[Reflection], tokens: Sequence[int], room: int) -> tuple[tuple[Reflection, ...], ...]:
    """Divide a shard into the fewest calls that fit, the longest of them as short as that allows. Pure.

    Args:
        items: In the order in which calls see them.
        tokens: Estimated tokens of each, none above ``room``.
        room: Estimated tokens that one call may take.

    Returns:
        Consecutive items of each call; nothing where there are none.
    """
    if sum(tokens) <= room:
        return (tuple(items),) if items else ()
    fewest = len(_filled(tokens, room))
    low, high = max(-(-sum(tokens) // fewest), max(tokens)), room
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(tokens, middle)) <= fewest else (middle + 1, high)
    return tuple(tuple(items[first:last]) for first, last in _filled(tokens, high))


def _filled(tokens: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return the bounds of consecutive runs, each as long as ``most`` tokens allow."""
    bounds = [(0, 0)]
    taken = 0
    for number, size in enumerate(tokens):
        if taken + size > most and number:
            bounds.append((number, number))
            taken = 0
        taken += size
        bounds[-1] = (bounds[-1][0], number + 1)
    return bounds
