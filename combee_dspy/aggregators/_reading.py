"""Level 1 of a scan: every shard of reflections is read by a call as soon as it is complete."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Container, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain, starmap

import dspy

from combee_dspy.aggregators._base import arrived, together
from combee_dspy.aggregators._dealing import even_runs
from combee_dspy.aggregators._lessons import parse_lessons
from combee_dspy.aggregators._prompts import quoting
from combee_dspy.aggregators._scan import Node, Scan
from combee_dspy.aggregators._sources import find_sources
from combee_dspy.aggregators._unread import find_passed_over
from combee_dspy.events import AnswersIgnored, WarningRaised
from combee_dspy.records import FailedCall, Lesson, Reflection
from combee_dspy.reflections import estimate_record_tokens, fit_reflections, render_records

# A reflection may take this part of a call, so that every call still compares several.
_SHARE = 4
# How often what was passed over is read again, each time by calls half as long.
_TURNS = 2
# Long reflections, or refused lessons, that one event names.
_NAMED = 5

_Reads = list[tuple[list[Reflection], dspy.Prediction | FailedCall]]
"""What each call read, and its answer."""


class ShardReader:
    """Reads shards of reflections for one scan.

    Args:
        scan: Gets level 1.
        signature: What a call is asked; returns ``lessons``, a list of texts.
        most_lessons: The most lessons that one call may return.
        finds_sources: Whether each lesson has the examples that teach it, and examples that calls
            passed over are read again. Else all that a call read teach each of its lessons.
    """

    def __init__(
        self,
        scan: Scan,
        signature: type[dspy.Signature],
        most_lessons: int,
        *,
        finds_sources: bool = False,
    ) -> None:
        self._scan, self._context = scan, scan.context
        self._most, self._signature, self._finds_sources = most_lessons, signature, finds_sources
        self._limits = {"most_lessons": most_lessons}
        if scan.context.longest_quote is not None:
            self._signature = quoting(self._signature)
            self._limits["longest_quote"] = scan.context.longest_quote
        self._too_long = self._passed_over = 0

    async def read(
        self, reflections: Sequence[Awaitable[Reflection | None]], shards: Iterable[Sequence[int]]
    ) -> None:
        """Read every shard as soon as its reflections are there, and add level 1 to the scan.

        A shard too long for one call is read by the fewest that it fits. Nodes are numbered in the
        order of the shards and of the calls of each.
        """
        fitted: dict[int, list[Reflection]] = {}
        notes: defaultdict[int, list[str]] = defaultdict(list)
        share = self._scan.room // _SHARE

        async def read_shard(number: int, positions: Sequence[int]) -> _Reads:
            ready = await arrived(reflections[position] for position in positions)
            for position, reflection in zip(positions, ready, strict=True):
                if position not in fitted:
                    items = [] if reflection is None else [reflection]
                    fitted[position] = fit_reflections(items, share, notes[position].append)
            items = [part for position in positions for part in fitted[position]]
            if all(item.perfect for item in items):
                return []  # without a mistake there is nothing to learn
            return await _chain(
                self._read_call(call, (number, part))
                for part, call in enumerate(self._calls(items))
            )

        reads = await _chain(
            read_shard(number, positions) for number, positions in enumerate(shards)
        )
        reads = await self._read_again(reads)
        if cuts := [note for _, texts in sorted(notes.items()) for note in texts]:
            more = f"; and {len(cuts) - _NAMED} more" if len(cuts) > _NAMED else ""
            self._warn("; ".join(cuts[:_NAMED]) + more)
        if reads:
            level = [self._node(number, *read) for number, read in enumerate(reads)]
            self._scan.levels.append(level)
        if self._too_long:
            self._warn(
                f"{self._too_long} calls were longer than the model takes, and read in halves."
                " Lower the aggregator's max_call_tokens."
            )
        if self._passed_over:
            self._warn(
                f"{self._passed_over} answers passed over nearly all examples, or could not be"
                " read: what no other call had read was read again by shorter ones"
            )

    async def _read_call(self, items: list[Reflection], place: tuple[int, ...]) -> _Reads:
        """Read reflections by one call, or by its halves where the model finds it too long."""
        answer = await self._ask(items, place)
        if not isinstance(answer, FailedCall) or not answer.too_long:
            return [(items, answer)]
        parts = items  # tokens are estimated here
        if len(items) == 1:
            parts = fit_reflections(items, estimate_record_tokens(items[0].record) // 2, str)
        if len(parts) < 2:
            return [(items, answer)]
        self._too_long += 1
        half = len(parts) // 2
        return await _chain(
            self._read_call(part, (*place, side))
            for side, part in enumerate((parts[:half], parts[half:]))
            if not all(item.perfect for item in part)
        )

    async def _read_again(self, reads: _Reads) -> _Reads:
        """Return what was read, mistakes again that all calls had passed over which read them.

        Small models keep all of what a call reads, or nothing, or repeat themselves without end. An
        answer that read nothing leaves once other calls have read its mistakes.
        """
        missed: list[frozenset[int]] = []  # by call
        covered: set[tuple[int, int]] = set()
        for turn in range(_TURNS + 1):
            new = reads[len(missed) :]
            # Long records take long, in which nothing else could run.
            missed += await asyncio.to_thread(list, starmap(self._missed, new))
            for (items, answer), indices in zip(new, missed[-len(new) :], strict=True):
                if not isinstance(answer, FailedCall):
                    covered.update(_place(item) for item in items if item.index not in indices)
            # A single example would be asked about as before.
            passed_over = [
                items
                for (items, _), indices in zip(new, missed[-len(new) :], strict=True)
                if indices and len(items) > 1
            ]
            left = {_place(item): item for items in passed_over for item in _open(items, covered)}
            if not left or turn == _TURNS:
                break
            self._passed_over += len(passed_over)
            again, size = list(left.values()), max(map(len, passed_over)) // 2
            chunks = (again[start : start + size] for start in range(0, len(again), size))
            reads = reads + await _chain(
                self._read_call(call, (-1 - turn, number))
                for number, call in enumerate(chain.from_iterable(map(self._calls, chunks)))
            )
        return [
            (items, answer)
            for (items, answer), indices in zip(reads, missed, strict=True)
            if any(not item.perfect and item.index not in indices for item in items)
            or _open(items, covered)
        ]

    def _calls(self, items: list[Reflection]) -> list[list[Reflection]]:
        """Return the fewest calls that items fit; media may pass what a call takes."""
        room = self._scan.room
        sizes = [min(estimate_record_tokens(item.record), room) for item in items]
        return [items[first:last] for first, last in even_runs(sizes, room)]

    def _missed(
        self, items: Sequence[Reflection], answer: dspy.Prediction | FailedCall
    ) -> frozenset[int]:
        """Return the mistakes that a call passed over, by index."""
        if isinstance(answer, FailedCall):
            mistakes = frozenset(item.index for item in items if not item.perfect)
            return mistakes if answer.unparsed else frozenset()
        if not self._finds_sources:
            return frozenset()
        texts = parse_lessons(answer.get("lessons"))[0]
        find = partial(find_sources, texts, items)
        return find_passed_over(items, texts, find, self._context.text)

    async def _ask(
        self, items: Sequence[Reflection], place: tuple[int, ...]
    ) -> dspy.Prediction | FailedCall:
        inputs = {
            "current_instruction": self._context.text,
            "examples_with_feedback": render_records(items),
            **self._limits,
        }
        return await self._context.ask(self._signature, inputs, "read", *place)

    def _node(
        self, number: int, items: Sequence[Reflection], answer: dspy.Prediction | FailedCall
    ) -> Node:
        """Return the lessons of one call that a mistake teaches.

        A lesson that comes from right answers alone changes what works.
        """
        texts, failed = self._scan.texts_in(number, answer, self._most)
        mistakes = {item.index for item in items if not item.perfect}
        read = [Lesson(text, _indices(items)) for text in texts]
        if self._finds_sources:
            read = find_sources(texts, items)
        lessons: list[Lesson] = []
        refused: list[Lesson] = []
        for lesson in read:
            (refused if mistakes.isdisjoint(lesson.sources) else lessons).append(lesson)
        if refused:
            reasons = (f"right answers alone teach {lesson.text[:60]!r}" for lesson in refused)
            self._context.emit(AnswersIgnored(len(refused), tuple(reasons)[:_NAMED]))
        return Node(tuple(lessons), _indices(items), failed)

    def _warn(self, text: str) -> None:
        self._context.emit(WarningRaised(text))


def _open(items: Iterable[Reflection], covered: Container[tuple[int, int]]) -> list[Reflection]:
    """Return the mistakes that no call has read."""
    return [item for item in items if not item.perfect and _place(item) not in covered]


def _place(item: Reflection) -> tuple[int, int]:
    return item.index, item.part


def _indices(items: Iterable[Reflection]) -> tuple[int, ...]:
    return tuple(sorted({item.index for item in items}))


async def _chain(reads: Iterable[Coroutine[object, object, _Reads]]) -> _Reads:
    return list(chain.from_iterable(await together(reads)))
