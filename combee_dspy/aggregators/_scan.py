"""One aggregation under way: reflections become calls, and answers become nodes, level by level."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import dspy

from combee_dspy.aggregators._base import arrived, data_room, even_runs, together
from combee_dspy.aggregators._citations import NUMBER
from combee_dspy.aggregators._lessons import join_lessons, parse_lessons, trace_lessons
from combee_dspy.aggregators._prompts import quoting
from combee_dspy.aggregators._reading import ReadingTask, from_mistakes
from combee_dspy.aggregators._unread import is_passed_over
from combee_dspy.events import AnswersIgnored, WarningRaised
from combee_dspy.records import FailedCall, Lesson, Lessons, NodeOutput, Reflection
from combee_dspy.reflections import estimate_record_tokens, fit_reflections, render_records
from combee_dspy.strategies import StrategyContext

# A reflection may take this part of a call, so that every call still compares several.
_SHARE = 4
# How often a call is read again in halves: a quarter of it is the least that is read so.
_HALVINGS = 2
# Long reflections that one warning names.
_SHOWN = 5


Reads = list[tuple[list[Reflection], dspy.Prediction | FailedCall]]
"""What each call read, and its answer."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a scan: what the journal keeps of it, and its lessons with their sources."""

    output: NodeOutput
    lessons: tuple[Lesson, ...]


class ScanState:
    """The calls of one aggregation, and the nodes that they made: by level, level 1 first.

    ``room`` is what the data of one call may take in estimated tokens, ``share`` what one
    reflection may take of them. The context hears warnings in an order that no arrival decides.
    """

    def __init__(self, context: StrategyContext, max_call_tokens: int) -> None:
        self.context = context
        self.room = data_room(max_call_tokens, context.text)
        self.share = self.room // _SHARE
        self.levels: list[list[Node]] = []
        self._call_tokens = max_call_tokens
        self._too_long = self._passed_over = 0

    @property
    def top(self) -> list[Node]:
        """The nodes of the highest level, none before anything was read."""
        return self.levels[-1] if self.levels else []

    def result(self) -> Lessons:
        """Return the lessons of the root, and the outputs of all nodes."""
        nodes = tuple(node.output for level in self.levels for node in level)
        return Lessons(
            self.context.component, self.top[0].lessons if self.levels else (), nodes=nodes
        )

    def node(
        self,
        number: int,
        lessons: Sequence[Lesson],
        sources: tuple[int, ...],
        failed: str | None = None,
    ) -> Node:
        """Make a node of the next level from the lessons it holds and the reflections below it."""
        texts = tuple(lesson.text for lesson in lessons)
        return Node(
            NodeOutput(len(self.levels) + 1, number, sources, texts, failed), tuple(lessons)
        )

    def join(self, similarity: float | None = None) -> None:
        """Add a level of one node, whose lessons code joins from the level below."""
        self.levels.append(
            [
                self.node(
                    0,
                    join_lessons((node.lessons for node in self.top), similarity),
                    _below(self.top),
                )
            ]
        )

    def warn(self, number: int, text: str) -> None:
        """Say that something of a node of the next level was cut or given up; the scan goes on."""
        self.context.emit(WarningRaised(f"level {len(self.levels) + 1}, node {number}: {text}"))

    def trim_evenly(self, reflections: Sequence[Reflection]) -> list[Reflection]:
        """Trim what takes more than an equal share of one call, and warn of it."""
        notes: list[str] = []
        limit = self.room // len(reflections)
        trimmed = fit_reflections(reflections, limit, notes.append, max_parts=1)
        self._warn_of_cuts(notes)
        return trimmed

    def _warn_of_cuts(self, notes: Sequence[str]) -> None:
        if notes:
            more = f"; and {len(notes) - _SHOWN} more" if len(notes) > _SHOWN else ""
            self.context.emit(WarningRaised("; ".join(notes[:_SHOWN]) + more))

    def tokens(self, items: Iterable[Reflection]) -> list[int]:
        """Estimate what each reflection takes of a call.

        Media may pass a whole call; they count as one.
        """
        return [min(estimate_record_tokens(item.record), self.room) for item in items]

    async def read(
        self,
        reflections: Sequence[Awaitable[Reflection | None]],
        shards: Iterable[Sequence[int]],
        question: ReadingTask,
    ) -> None:
        """Read every shard as soon as its reflections are there, and add level 1.

        A shard too long for one call is read by the fewest that it fits. Nodes are numbered in the
        order of the shards and of the calls of each.
        """
        fitted: dict[int, tuple[list[Reflection], list[str]]] = {}

        async def read_shard(number: int, positions: Sequence[int]) -> Reads:
            ready = await arrived(reflections[position] for position in positions)
            for position, reflection in zip(positions, ready, strict=True):
                if position not in fitted:
                    notes: list[str] = []
                    items = [] if reflection is None else [reflection]
                    fitted[position] = fit_reflections(items, self.share, notes.append), notes
            items = [part for position in positions for part in fitted[position][0]]
            if all(item.perfect for item in items):
                return []  # no mistake among them: a call would be paid for nothing
            calls = [items[first:last] for first, last in even_runs(self.tokens(items), self.room)]
            return list(
                chain.from_iterable(
                    await together(
                        self._read_call(question, call, number, part)
                        for part, call in enumerate(calls)
                    )
                )
            )

        read = await together(
            read_shard(number, positions) for number, positions in enumerate(shards)
        )
        self._warn_of_cuts([note for _, (_, notes) in sorted(fitted.items()) for note in notes])
        self._add_level(question, list(chain.from_iterable(read)))

    async def _read_call(
        self, question: ReadingTask, items: list[Reflection], *place: int, halvings: int = _HALVINGS
    ) -> Reads:
        """Read reflections by one call.

        They are read in halves where the model finds the call too long, since tokens are estimated
        here, and where the answer passes over nearly all of them: a small model keeps all of what a
        call reads, or nothing.
        """
        records = render_records(items)
        if question.cites:
            records = [{NUMBER: number, **record} for number, record in enumerate(records, start=1)]
        data = {"current_instruction": self.context.text, "examples_with_feedback": records}
        answer = await self.ask(question.signature, {**data, **question.limits}, "read", *place)
        whole = [(items, answer)]
        if isinstance(answer, FailedCall):
            if not answer.too_long:
                return whole
            parts = items
            if len(items) == 1:
                parts = fit_reflections(items, estimate_record_tokens(items[0].record) // 2, str)
            if len(parts) < 2:
                return whole
            self._too_long += 1
            return await self._halves(question, parts, place, halvings)
        if not question.cites or halvings == 0 or len(items) < 2:
            return whole
        lessons = question.lessons(items, parse_lessons(answer.get(question.field))[0])
        if not is_passed_over(items, lessons, self.context.text):
            return whole
        self._passed_over += 1
        halves = await self._halves(question, items, place, halvings - 1)
        return whole if all(isinstance(answer, FailedCall) for _, answer in halves) else halves

    async def _halves(
        self, question: ReadingTask, parts: list[Reflection], place: tuple[int, ...], halvings: int
    ) -> Reads:
        half = len(parts) // 2
        reads = [
            self._read_call(question, part, *place, side, halvings=halvings)
            for side, part in enumerate((parts[:half], parts[half:]))
            if not all(item.perfect for item in part)
        ]
        return list(chain.from_iterable(await together(reads)))

    async def ask(
        self, signature: type[dspy.Signature], inputs: Mapping[str, object], *place: str | int
    ) -> dspy.Prediction | FailedCall:
        """Ask a reader, with the most words that a lesson may quote from an example."""
        if self.context.longest_quote is not None:
            signature, inputs = (
                quoting(signature),
                {**inputs, "longest_quote": self.context.longest_quote},
            )
        return await self.context.ask(signature, inputs, *place)

    def _add_level(self, question: ReadingTask, reads: Reads) -> None:
        most = next(iter(question.limits.values()))
        level: list[Node] = []
        for number, (items, answer) in enumerate(reads):
            sources = tuple(sorted({item.index for item in items}))
            texts, failed = self.texts(number, answer, most, question.field)
            lessons, refused = from_mistakes(items, question.lessons(items, texts))
            if refused:
                self.context.emit(AnswersIgnored(len(refused), tuple(refused[:_SHOWN])))
            level.append(self.node(number, lessons, sources, failed))
        if level:
            self.levels.append(level)
        if self._too_long:
            text = (
                f"{self._too_long} calls were longer than the model takes, and read in halves."
                f" Lower the aggregator's max_call_tokens, which is {self._call_tokens:,}"
            )
            self.context.emit(WarningRaised(text))
        if self._passed_over:
            text = (
                f"{self._passed_over} answers passed over nearly all examples, which were read"
                " again in halves"
            )
            self.context.emit(WarningRaised(text))

    def reduced(
        self,
        number: int,
        lists: Sequence[Sequence[Lesson]],
        below: Sequence[Node],
        answer: dspy.Prediction | FailedCall | None,
        empty: str,
    ) -> Node:
        """Return a node of the next level from lists that one call was to reduce.

        Where the call failed, returned nothing (``empty`` says so) or had nothing to reduce (no
        answer), the lists are joined by code.
        """
        sources = _below(below)
        lessons, failed = join_lessons(lists), None
        if answer is not None:
            texts, failed = self.texts(number, answer, sum(map(len, lists)))
            if texts:
                lessons = trace_lessons(texts, lists, sources)
            else:
                failed = failed or f"EmptyAnswer: {empty}"
        return self.node(number, lessons, sources, failed)

    def texts(
        self, number: int, answer: dspy.Prediction | FailedCall, most: int, name: str = "lessons"
    ) -> tuple[list[str], str | None]:
        """Return the texts in a field of a prediction, or why there are none.

        It warns of what is cut beyond ``most``.
        """
        if isinstance(answer, FailedCall):
            return [], answer.error
        value = answer.get(name)
        if value is None:
            return [], f"EmptyAnswer: the answer has no {name} field"
        texts, notes = parse_lessons(value, most)
        for note in notes:
            self.warn(number, note)
        return texts, None


def _below(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Return the indices of the reflections below some nodes, ascending, each once."""
    return tuple(sorted({source for node in nodes for source in node.output.sources}))
