"""The curators: one question about each shard of insights, as soon as the shard is there."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass

import dspy

from combee_dspy.aggregators import even_runs
from combee_dspy.aggregators._base import arrived, together
from combee_dspy.artifacts._book import Book
from combee_dspy.artifacts._deltas import Delta
from combee_dspy.artifacts._prompts import CurateInsights
from combee_dspy.artifacts._reading import read_deltas
from combee_dspy.artifacts._reflecting import insight_of
from combee_dspy.artifacts._text import render
from combee_dspy.records import FailedCall, Lesson, NodeOutput, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext

__all__ = ["Curated", "curated"]

# An insight may ask for more than one operation, and what stands in the playbook for some besides.
_SPARE = 4
# The signature's own text, its output schema and the adapter's frame, rounded up.
_PROMPT_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class Curated:
    """What the curators of a minibatch asked for.

    Attributes:
        deltas: Of all calls, in the order of shards and calls.
        lessons: The same as lines, each once, with the trajectories that it came from.
        nodes: What each call returned, and their join.
    """

    deltas: tuple[Delta, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    nodes: tuple[NodeOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class _Call:
    """One call's answer, the positions of the insights that it read, and the most operations it was asked for."""

    sources: tuple[int, ...]
    most: int
    answer: dspy.Prediction | FailedCall


async def curated(
    reflections: Sequence[Awaitable[Reflection | None]],
    shards: Iterable[Sequence[int]],
    book: Book,
    context: StrategyContext,
    *,
    max_tokens: int,
    call_tokens: int | None,
) -> Curated:
    """Ask about each shard as soon as its own reflections are there.

    A shard without insights costs no call; one too long for a call is read by several. A call that fails
    for good is lost there and nowhere else.

    Args:
        reflections: Position i of the minibatch at i.
        shards: Positions that each curator reads.
        book: What the deltas are about.
        context: The way to the LM; its notes are what the program is told besides the playbook.
        max_tokens: Estimated tokens that curators see of the playbook.
        call_tokens: Estimated tokens that one call may take; ``None`` for no limit.
    """
    shown, _ = render(book, max_tokens)

    def calls(insights: Sequence[tuple[int, str]]) -> list[Sequence[tuple[int, str]]]:
        if call_tokens is None or not insights:
            return [insights] if insights else []
        fixed = _PROMPT_TOKENS + estimate_tokens(context.notes) + estimate_tokens(shown)
        # Where the playbook itself fills a call, some insights must still stand beside it.
        runs = even_runs([estimate_tokens(text) for _, text in insights], max(call_tokens - fixed, call_tokens // 2))
        return [insights[first:last] for first, last in runs]

    async def ask(insights: Sequence[tuple[int, str]], shard: int, part: int) -> _Call:
        most = len(insights) + _SPARE
        inputs = {
            "current_instruction": context.notes,
            "current_playbook": shown,
            "sections": list(book.sections),
            "insights": [text for _, text in insights],
            "most_operations": most,
        }
        answer = await context.ask(CurateInsights, inputs, "curate", shard, part)
        return _Call(tuple(sorted({place for place, _ in insights})), most, answer)

    async def read(shard: int, positions: Sequence[int]) -> list[_Call]:
        found = await arrived(reflections[position] for position in positions)
        taught = [(one.index, insight) for one in found if one is not None and (insight := insight_of(one))]
        return await together(ask(insights, shard, part) for part, insights in enumerate(calls(taught)))

    asked = await together(read(shard, positions) for shard, positions in enumerate(shards))
    return _joined([call for shard in asked for call in shard], context)


def _joined(calls: Sequence[_Call], context: StrategyContext) -> Curated:
    deltas: list[Delta] = []
    sources: dict[str, set[int]] = {}
    level: list[NodeOutput] = []
    for node, call in enumerate(calls):
        if isinstance(call.answer, FailedCall):
            context.emit("error", where="curator", error=call.answer.error)
            level.append(NodeOutput(1, node, call.sources, (), call.answer.error))
            continue
        asked, ignored = read_deltas(getattr(call.answer, "operations", None), call.most)
        for note in ignored:
            context.emit("warning", text=f"curator {node}: ignored: {note}")
        deltas += asked
        lines = tuple(map(_line, asked))
        for line in lines:
            sources.setdefault(line, set()).update(call.sources)
        level.append(NodeOutput(1, node, call.sources, lines))
    if not level:
        return Curated()
    every = tuple(sorted({source for node in level for source in node.sources}))
    lessons = tuple(Lesson(line, tuple(sorted(found))) for line, found in sources.items())
    return Curated(tuple(deltas), lessons, (*level, NodeOutput(2, 0, every, tuple(sources))))


def _line(delta: Delta) -> str:
    if delta.op == "ADD":
        return delta.content
    return f"{delta.op} {', '.join(delta.ids)}{': ' if delta.content else ''}{delta.content}"
