"""Level 1 of a scan: every shard of reflections is read by a call as soon as it is complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain

import dspy

from combee_dspy.aggregators._base import arrived, together
from combee_dspy.aggregators._citations import (
    NUMBER,
    check_citations,
    read_citations,
    split_citations,
)
from combee_dspy.aggregators._dealing import even_runs
from combee_dspy.aggregators._lessons import parse_lessons
from combee_dspy.aggregators._prompts import quoting
from combee_dspy.aggregators._scan import Node, Scan
from combee_dspy.aggregators._unread import is_passed_over
from combee_dspy.events import AnswersIgnored, WarningRaised
from combee_dspy.records import FailedCall, Lesson, Reflection
from combee_dspy.reflections import estimate_record_tokens, fit_reflections, render_records

# A reflection may take this part of a call, so that every call still compares several.
_SHARE = 4
# How often a call is read again in halves: a quarter of it is the least that is read so.
_HALVINGS = 2
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
        cites: Whether it asks for citations: examples then carry numbers, and each lesson has those
            that teach it. Without it, all that a call read teach each of its lessons.
    """

    def __init__(
        self,
        scan: Scan,
        signature: type[dspy.Signature],
        most_lessons: int,
        *,
        cites: bool = False,
    ) -> None:
        self._scan, self._context = scan, scan.context
        self._most, self._cites, self._signature = most_lessons, cites, signature
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
            room = self._scan.room  # media may pass it
            sizes = [min(estimate_record_tokens(item.record), room) for item in items]
            calls = [items[first:last] for first, last in even_runs(sizes, room)]
            return await _chain(
                self._read_call(call, (number, part)) for part, call in enumerate(calls)
            )

        reads = await _chain(
            read_shard(number, positions) for number, positions in enumerate(shards)
        )
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
                " read: their examples were read again in halves"
            )

    async def _read_call(
        self, items: list[Reflection], place: tuple[int, ...], halvings: int = _HALVINGS
    ) -> _Reads:
        """Read reflections by one call, or by its halves.

        Halves are read where the model finds the call too long, since tokens are estimated here.
        So they are where an answer passes over nearly all of them, or cannot be read: small models
        keep all of what a call reads, or nothing, or repeat themselves without end.
        """
        answer = await self._ask(items, place)
        whole = [(items, answer)]
        if isinstance(answer, FailedCall) and answer.too_long:
            parts = items
            if len(items) == 1:
                parts = fit_reflections(items, estimate_record_tokens(items[0].record) // 2, str)
            if len(parts) < 2:
                return whole
            self._too_long += 1
            return await self._read_halves(parts, place, halvings)
        if not self._is_passed_over(items, answer) or halvings == 0 or len(items) < 2:
            return whole
        self._passed_over += 1
        halves = await self._read_halves(items, place, halvings - 1)
        return whole if all(isinstance(answer, FailedCall) for _, answer in halves) else halves

    async def _read_halves(
        self, items: list[Reflection], place: tuple[int, ...], halvings: int
    ) -> _Reads:
        half = len(items) // 2
        return await _chain(
            self._read_call(part, (*place, side), halvings)
            for side, part in enumerate((items[:half], items[half:]))
            if not all(item.perfect for item in part)
        )

    def _is_passed_over(
        self, items: Sequence[Reflection], answer: dspy.Prediction | FailedCall
    ) -> bool:
        if isinstance(answer, FailedCall):
            return answer.unparsed
        if not self._cites:
            return False
        lessons = split_citations(parse_lessons(answer.get("lessons"))[0], items)
        check = partial(check_citations, lessons, items)
        return is_passed_over(items, lessons, check, self._context.text)

    async def _ask(
        self, items: Sequence[Reflection], place: tuple[int, ...]
    ) -> dspy.Prediction | FailedCall:
        records = render_records(items)
        if self._cites:
            records = [{NUMBER: number, **record} for number, record in enumerate(records, start=1)]
        inputs = {
            "current_instruction": self._context.text,
            "examples_with_feedback": records,
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
        if self._cites:
            read = read_citations(texts, items)
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


def _indices(items: Iterable[Reflection]) -> tuple[int, ...]:
    return tuple(sorted({item.index for item in items}))


async def _chain(reads: Iterable[Coroutine[object, object, _Reads]]) -> _Reads:
    return list(chain.from_iterable(await together(reads)))
