"""Checks for aggregators: many awaitable reflections in, lessons out."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from combee_dspy.aggregators import Aggregator
from combee_dspy.edits import BookEdit
from combee_dspy.lessons import Book, Taught
from combee_dspy.records import Lesson, Lessons, NodeOutput, Reflection, Role
from combee_dspy.testing._kit import attempt, expect, expect_same_at_once
from combee_dspy.testing.doubles import (
    ScriptedAsk,
    arriving,
    context,
    expect_calls_by_ask,
    reflections,
)

_Arrivals = int | Sequence[Reflection | Exception | None]

_COUNTS = (0, 1, 2, 3, 8, 13, 200)


_ALIKE = 12
"""Reflections that say the same: a vote needs several, in several shards."""


def _alike(count: int) -> list[Reflection]:
    """Return reflections on different examples with one record: a mistake that all make."""
    record = reflections(2)[1].record
    return [replace(reflection, record=dict(record)) for reflection in reflections(count)]


async def _aggregate(
    strategy: Aggregator,
    arrivals: _Arrivals,
    ask: ScriptedAsk | None = None,
    order: Sequence[int] = (),
) -> Lessons:
    """Aggregate reflections, so many or these, that arrive in an order."""
    outcomes = reflections(arrivals) if isinstance(arrivals, int) else arrivals
    return await strategy.aggregate(arriving(outcomes, order), context(ask))


def _run(
    strategy: Aggregator,
    arrivals: _Arrivals,
    ask: ScriptedAsk | None = None,
    order: Sequence[int] = (),
) -> Lessons:
    count = arrivals if isinstance(arrivals, int) else len(arrivals)
    expected = f"`aggregate` returns for {count} reflections"
    mend = "no number of reflections, no answer and no failed call may make it raise"
    return attempt(lambda: _aggregate(strategy, arrivals, ask, order), expected, mend)


def check_takes_any_number_of_reflections(strategy: Aggregator) -> None:
    """From none, which costs nothing, to hundreds, primes included; some of which teach nothing.

    Whoever lets reflections vote need not learn what a single one says, but what all say.
    """
    for count in _COUNTS:
        ask = ScriptedAsk()
        result = _run(strategy, count, ask)
        _check_lessons(result, count)
        if not count:
            expect(
                not ask.calls, "no LM call when there are no reflections", f"{len(ask.calls)} calls"
            )
            expect(
                not result.lessons and result.rewrite is None,
                "nothing from no reflections",
                f"{result!r:.300}",
            )
    result = _run(strategy, _alike(_ALIKE))
    expect(
        result.lessons or result.rewrite,
        f"something learned from {_ALIKE} reflections that say the same, when every LM call"
        " succeeds",
        "nothing",
    )
    some = [reflection if reflection.index % 3 else None for reflection in reflections(13)]
    untold = [
        item
        for item in _run(strategy, some).lessons
        if not all(source % 3 for source in item.sources)
    ]
    mend = "leave out what is None once it was awaited; `gathered` does"
    expect(
        not untold, "no lesson from a position whose reflection is None", f"{untold!r:.200}", mend
    )
    ask = ScriptedAsk()
    _run(strategy, [None] * 5, ask)
    expect(
        not ask.calls, "no LM call where no position teaches anything", f"{len(ask.calls)} calls"
    )


def _check_lessons(result: Any, count: int) -> None:
    ours = isinstance(result, Lessons) and result.component == "answer"
    mend = "return Lessons(context.component, lessons=(Lesson(text, sources), …), nodes=…)"
    happened = f"for {count} reflections it returned {result!r:.200}"
    expect(ours, "a `combee_dspy.records.Lessons` of `context.component`", happened, mend)
    sound = all(
        isinstance(x, Lesson) and isinstance(x.text, str) and x.text.strip() for x in result.lessons
    )
    mend = "drop blank answers; an LM returns them"
    expect(
        sound,
        "a tuple of `Lesson`s with text",
        f"for {count} reflections: {result.lessons!r:.300}",
        mend,
    )
    traced = all(isinstance(node, NodeOutput) for node in result.nodes)
    mend = "say what each call returned: it is how a lost lesson is traced"
    expect(traced, "a tuple of `NodeOutput`s, one per LM call", f"{result.nodes!r:.300}", mend)
    for item in (*result.lessons, *result.nodes):
        ordered = list(item.sources) == sorted(set(item.sources)) and all(
            0 <= source < count for source in item.sources
        )
        mend = "use `tuple(sorted({reflection.index for reflection in shard}))`"
        expect(
            ordered,
            f"sources that are indices of {count} reflections, ascending, once",
            f"{item!r:.300}",
            mend,
        )


def check_the_order_of_arrival_counts_nothing(strategy: Aggregator) -> None:
    """A resumed run, or one with more workers, must learn the same: joins go by position."""
    first = _run(strategy, 13)
    for order in ((), range(12, -1, -1), (*range(6, 13), *range(6))):
        again = _run(strategy, 13, order=order)
        mend = (
            "plan shards from `len(reflections)`; draw from `context.stream(…)` only; no clock, no"
            " order of sets"
        )
        happened = f"{first!r:.200} and then {again!r:.200}"
        expect(
            first == again,
            "equal lessons for equal reflections, in whatever order they arrive",
            happened,
            mend,
        )


def check_a_failed_reflection_is_raised(strategy: Aggregator) -> None:
    """An awaitable that raises ends the update: it is no lesson."""
    arrivals: list[Reflection | Exception | None] = [*reflections(8), KeyError("no such rollout")]
    try:
        result = asyncio.run(_aggregate(strategy, arrivals))
    except KeyError:
        return
    expect(
        False,
        "the exception of the awaitable, as it is",
        f"it returned {result!r:.200}",
        "do not catch it",
    )


def check_several_uses_at_once(strategy: Aggregator) -> None:
    """One object aggregates several components at once and leaves its inputs alone."""
    inputs = {count: reflections(count) for count in (1, 5, 8, 13)}
    before = copy.deepcopy(inputs)

    expect_same_at_once(
        {
            f"{count} reflections": partial(_aggregate, strategy, group)
            for count, group in inputs.items()
        }
    )
    expect(
        inputs == before,
        "reflections unchanged by `aggregate`",
        "a record was changed",
        "build new dicts and lists",
    )


def check_every_call_goes_through_ask(strategy: Aggregator) -> None:
    """`context.ask` carries journal, books and retries; another way escapes them."""
    ask = ScriptedAsk()
    expect_calls_by_ask(lambda: _aggregate(strategy, 8, ask))
    roles = {call.role for call in ask.calls}
    expect(
        roles <= set(get_args(Role)), f"roles among {', '.join(get_args(Role))}", f"roles {roles}"
    )
    places = [(call.place, call.signature.__name__, repr(call.inputs)) for call in ask.calls]
    mend = "name shard, level or attempt: `context.ask(signature, inputs, level, node)`"
    apart = len(set(places)) == len(places)
    expect(
        apart,
        "calls that differ in place or inputs",
        "two are the same to a journal, which buys one",
        mend,
    )


def check_survives_failed_calls(strategy: Aggregator) -> None:
    """A failed call loses its shard's lessons, not the update.

    An LM may also answer with nothing.
    """
    for count in (1, 3, 13):
        ask = ScriptedAsk(fail=lambda call: True)
        result = _run(strategy, count, ask)
        _check_lessons(result, count)
        recorded = not ask.calls or any(node.failed for node in result.nodes)
        mend = "for a `FailedCall`, add NodeOutput(level, node, sources, (), failed=call.error)"
        expect(
            recorded,
            "failed calls kept as `NodeOutput`s with `failed` set",
            "all failed and no node says so",
            mend,
        )
        _check_lessons(_run(strategy, count, ScriptedAsk(empty=True)), count)
    ask = ScriptedAsk(fail=lambda call: call.index == 0)
    result = _run(strategy, _alike(_ALIKE), ask)
    _check_lessons(result, _ALIKE)
    learned = len(ask.calls) < 2 or result.lessons or result.rewrite
    mend = "skip the `FailedCall` and go on with the other predictions"
    expect(
        learned,
        "the lessons of the calls that succeeded",
        "one failed and nothing was returned",
        mend,
    )


def check_edits_name_lessons_that_are_there(strategy: Aggregator) -> None:
    """Edits name lessons by their ids: those that are returned, and those of the book.

    Later comparisons (`relate`) may fail, or come back empty, as any call may.
    """
    for ask in (ScriptedAsk(), ScriptedAsk(empty=True), ScriptedAsk(fail=lambda call: True)):
        result = _run(strategy, 13, ask)
        taught = [Taught(item.text, tuple(map(str, item.sources))) for item in result.lessons]
        _check_edits("aggregate", result.edits, Book().add(taught, born=1))
        book = Book().add((Taught(text, (str(row),)) for row, text in enumerate(_RELATED)), born=1)
        seen = replace(context(ask), book=book, reflections=tuple(reflections(13)))
        mend = "for a `FailedCall` or an empty answer, return ()"
        edits = attempt(partial(strategy.relate, _RELATED, seen), "`relate` returns", mend)
        _check_edits("relate", edits, book)


_RELATED = ("Give the product.", "State the product.", "Give the sum.", "Round the product.")


def _check_edits(verb: str, edits: Any, book: Book) -> None:
    ours = isinstance(edits, tuple) and all(isinstance(edit, BookEdit) for edit in edits)
    mend = "return a tuple of edits, see `combee_dspy.edits`"
    expect(ours, f"a tuple of edits from `{verb}`", f"{edits!r:.200}", mend)
    refused = book.edit(edits).refused
    mend = "name a lesson by `lesson_id(lesson.text)`"
    expect(not refused, f"edits from `{verb}` that the book accepts", f"{refused!r:.300}", mend)
