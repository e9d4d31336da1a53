"""Level 1 of a scan: every shard of reflections is read by a call as soon as it is complete."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from itertools import chain, starmap

import dspy

from combee_dspy.aggregators._again import Read, shorten_calls, shows_feedback_alone
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
# How often what was passed over is read again, each time by shorter calls.
_TURNS = 2
# Long reflections, or refused lessons, that one event names.
_NAMED = 5
_TEXT = "current_instruction"


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

        async def read_shard(number: int, positions: Sequence[int]) -> list[Read]:
            ready = await arrived(reflections[position] for position in positions)
            for position, reflection in zip(positions, ready, strict=True):
                if position not in fitted:
                    items = [] if reflection is None else [reflection]
                    fitted[position] = fit_reflections(items, share, notes[position].append)
            items = [part for position in positions for part in fitted[position]]
            if all(item.perfect for item in items):
                return []  # without a mistake there is nothing to learn
            return await _chain(
                self._read_call(call, (number, part), self._signature)
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
            self._scan.levels.append(list(starmap(self._node, enumerate(reads))))
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

    async def _read_call(
        self, items: list[Reflection], place: tuple[int, ...], signature: type[dspy.Signature]
    ) -> list[Read]:
        """Read reflections by one call, or by its halves where the model finds it too long."""
        answer = await self._ask(items, place, signature)
        parts = items  # tokens are estimated here
        if isinstance(answer, FailedCall) and answer.too_long:
            if len(items) == 1:
                parts = fit_reflections(items, estimate_record_tokens(items[0].record) // 2, str)
            if len(parts) > 1:
                self._too_long += 1
                half = len(parts) // 2
                return await _chain(
                    self._read_call(part, (*place, side), signature)
                    for side, part in enumerate((parts[:half], parts[half:]))
                    if not all(item.perfect for item in part)
                )
        # Long records take long, in which nothing else could run.
        return [await asyncio.to_thread(self._look_into, items, answer)]

    async def _read_again(self, reads: list[Read]) -> list[Read]:
        """Return what was read, mistakes again that all calls had passed over which read them.

        An answer that read nothing leaves once other calls have read its mistakes.
        """
        covered: set[tuple[int, int]] = set()
        new = reads
        for turn in range(_TURNS + 1):
            covered = covered.union(*(read.covered for read in new))
            passed_over = [read for read in new if read.missed and read.unread(covered)]
            shorter = shorten_calls(passed_over, covered)
            if not shorter or turn == _TURNS:
                break
            self._passed_over += len(passed_over)
            calls = chain.from_iterable(map(self._calls, shorter))
            new = await _chain(
                self._read_call(call, (-1 - turn, number), self._signature_for(call))
                for number, call in enumerate(calls)
            )
            reads = reads + new
        return [read for read in reads if read.has_news(covered)]

    def _signature_for(self, items: Iterable[Reflection]) -> type[dspy.Signature]:
        """Return what a call is asked: feedback alone comes without the program's text."""
        return self._signature.delete(_TEXT) if shows_feedback_alone(items) else self._signature

    def _calls(self, items: list[Reflection]) -> list[list[Reflection]]:
        """Return the fewest calls that items fit; media may pass what a call takes."""
        room = self._scan.room
        sizes = [min(estimate_record_tokens(item.record), room) for item in items]
        return [items[first:last] for first, last in even_runs(sizes, room)]

    async def _ask(
        self,
        items: Sequence[Reflection],
        place: tuple[int, ...],
        signature: type[dspy.Signature],
    ) -> dspy.Prediction | FailedCall:
        inputs = {"examples_with_feedback": render_records(items), **self._limits}
        if _TEXT in signature.input_fields:
            inputs[_TEXT] = self._context.text
        return await self._context.ask(signature, inputs, "read", *place)

    def _look_into(self, items: list[Reflection], answer: dspy.Prediction | FailedCall) -> Read:
        """Return an answer with what teaches each of its lessons, and what it passed over."""
        if isinstance(answer, FailedCall):
            return Read(items, answer, [], _mistakes(items) if answer.unparsed else frozenset())
        texts = parse_lessons(answer.get("lessons"), self._most)[0]
        if not self._finds_sources:
            return Read(
                items, answer, [Lesson(text, _indices(items)) for text in texts], frozenset()
            )
        lessons = find_sources(texts, items)
        missed = find_passed_over(items, len(texts), lessons, self._context.text)
        return Read(items, answer, lessons, missed)

    def _node(self, number: int, read: Read) -> Node:
        """Return the lessons of one call that a mistake teaches.

        A lesson that comes from right answers alone changes what works.
        """
        _, failed = self._scan.texts_in(number, read.answer, self._most)
        mistakes = _mistakes(read.items)
        lessons: list[Lesson] = []
        refused: list[Lesson] = []
        for lesson in read.lessons:
            (refused if mistakes.isdisjoint(lesson.sources) else lessons).append(lesson)
        if refused:
            reasons = (f"right answers alone teach {lesson.text[:60]!r}" for lesson in refused)
            self._context.emit(AnswersIgnored(len(refused), tuple(reasons)[:_NAMED]))
        return Node(tuple(lessons), _indices(read.items), failed)

    def _warn(self, text: str) -> None:
        self._context.emit(WarningRaised(text))


def _mistakes(items: Iterable[Reflection]) -> frozenset[int]:
    return frozenset(item.index for item in items if not item.perfect)


def _indices(items: Iterable[Reflection]) -> tuple[int, ...]:
    return tuple(sorted({item.index for item in items}))


async def _chain(reads: Iterable[Coroutine[object, object, list[Read]]]) -> list[Read]:
    return list(chain.from_iterable(await together(reads)))
