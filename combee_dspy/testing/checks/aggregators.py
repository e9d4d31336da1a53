"""Checks for aggregators: many reflections in, lessons out."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

from combee_dspy.aggregators import Aggregator
from combee_dspy.records import Lesson, Lessons, NodeOutput, Role
from combee_dspy.testing.checks._expect import attempt, expect
from combee_dspy.testing.doubles import ScriptedPredict, context, reflections, watch_lms

__all__ = ["CHECKS"]

COUNTS = (0, 1, 2, 3, 8, 13, 200)


def check_takes_any_number_of_reflections(strategy: Aggregator) -> None:
    """From none to hundreds, primes included."""
    for count in COUNTS:
        result = _run(strategy, count)
        _check_lessons(result, count)
        if count:
            expect(
                result.lessons or result.rewrite,
                f"something learned from {count} reflections when every LM call succeeds",
                "no lesson and no rewrite",
                "return what the LM answered as `Lesson`s",
            )


def _run(strategy: Aggregator, count: int, predict: ScriptedPredict | None = None) -> Lessons:
    return attempt(
        lambda: strategy.aggregate(reflections(count), context(predict)),
        f"`aggregate` returns for {count} reflections",
        "no number of reflections, no answer and no failed call may make it raise",
    )


def _check_lessons(result: Any, count: int) -> None:
    expect(
        isinstance(result, Lessons),
        "a `combee_dspy.records.Lessons`",
        f"for {count} reflections it returned {type(result).__name__}",
        "return Lessons(context.component, lessons=(Lesson(text, sources), …), nodes=…)",
    )
    expect(
        result.component == "answer",
        "`Lessons.component` equal to `context.component`",
        f"it is {result.component!r}",
        "pass `context.component` on",
    )
    expect(
        isinstance(result.lessons, tuple)
        and all(isinstance(x, Lesson) and isinstance(x.text, str) and x.text.strip() for x in result.lessons),
        "a tuple of `Lesson`s with text",
        f"for {count} reflections: {result.lessons!r:.300}",
        "drop blank answers; an LM returns them",
    )
    expect(
        isinstance(result.nodes, tuple) and all(isinstance(node, NodeOutput) for node in result.nodes),
        "a tuple of `NodeOutput`s, one per LM call",
        f"for {count} reflections: {result.nodes!r:.300}",
        "say what each call returned: it is how a lost lesson is traced",
    )
    for item in (*result.lessons, *result.nodes):
        expect(
            list(item.sources) == sorted(set(item.sources)) and all(0 <= source < count for source in item.sources),
            f"sources that are indices of the {count} reflections, ascending, each once",
            f"{item!r:.300}",
            "use `tuple(sorted({reflection.index for reflection in shard}))`",
        )


def check_no_reflections_cost_nothing(strategy: Aggregator) -> None:
    """With nothing to read there is nothing to buy."""
    predict = ScriptedPredict()
    result = _run(strategy, 0, predict)
    expect(
        not predict.calls,
        "no LM call when there are no reflections",
        f"{len(predict.calls)} calls",
        "return Lessons(context.component) at once",
    )
    expect(
        isinstance(result, Lessons) and not result.lessons and result.rewrite is None,
        "no lesson and no rewrite from no reflections",
        f"{result!r:.300}",
        "return Lessons(context.component)",
    )


def check_leaves_its_inputs_alone(strategy: Aggregator) -> None:
    """Reflections are shared with other components, trackers and the journal."""
    given = reflections(13)
    before = copy.deepcopy(given)
    attempt(lambda: strategy.aggregate(given, context()), "`aggregate` returns", "see its traceback above")
    expect(
        given == before,
        "reflections unchanged by `aggregate`",
        "a record was changed",
        "build new dicts and lists instead of changing those in `reflection.record`",
    )


def check_same_stream_same_lessons(strategy: Aggregator) -> None:
    """A resumed run must learn what the first one learned."""
    first, second = (_run(strategy, 13) for _ in range(2))
    expect(
        first == second,
        "equal lessons for equal reflections, seed and answers",
        f"{first!r:.200} and then {second!r:.200}",
        "draw from `context.stream(…)` only; no clock, no `random`, no `hash()`, no order of sets",
    )


def check_threads_may_share_it(strategy: Aggregator) -> None:
    """Components, and runs, are aggregated at the same time by one object, with any number of workers."""
    counts = (1, 5, 8, 13)
    alone = [_run(strategy, count) for count in counts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda count: _run(strategy, count), counts))
    expect(
        together == alone,
        "the same lessons from four threads at once as from one",
        f"different ones for {[n for n, one, two in zip(counts, alone, together, strict=True) if one != two]} of them",
        "keep nothing on self or in the module between calls: what belongs to one call stays in its variables",
    )


def check_every_call_goes_through_predict(strategy: Aggregator) -> None:
    """`predict` carries the ledger, the retries and the cache; another way escapes the books."""
    predict = ScriptedPredict()
    with watch_lms() as seen:
        result: Any = None
        try:
            result = strategy.aggregate(reflections(8), context(predict))
        except Exception:
            # An LM that refuses may well make it raise; without such a call it must not.
            if not seen:
                raise
    expect(
        not seen and result is not None,
        "LM calls by `context.predict` only",
        f"called {', '.join(seen)}",
        "replace dspy.Predict(signature)(…) by context.predict(signature, [inputs, …])",
    )
    roles = {call.role for call in predict.calls}
    expect(
        roles <= set(get_args(Role)),
        f"roles among {', '.join(get_args(Role))}",
        f"roles {', '.join(map(str, roles))}",
        'pass role="proposer", or leave it out',
    )


def check_survives_failed_calls(strategy: Aggregator) -> None:
    """A failed call loses its shard's lessons, not the iteration."""
    for count in (1, 3, 13):
        predict = ScriptedPredict(fail=lambda call: True)
        result = _run(strategy, count, predict)
        _check_lessons(result, count)
        expect(
            not predict.calls or any(node.failed for node in result.nodes),
            "failed calls kept as `NodeOutput`s with `failed` set",
            f"all {len(predict.calls)} calls failed and no node says so",
            "for a `FailedCall`, add NodeOutput(level, node, sources, (), failed=call.error)",
        )
    predict = ScriptedPredict(fail=lambda call: call.index == 0)
    result = _run(strategy, 13, predict)
    _check_lessons(result, 13)
    expect(
        len(predict.calls) < 2 or result.lessons or result.rewrite,
        "the lessons of the calls that succeeded",
        f"one of {len(predict.calls)} calls failed and nothing was returned",
        "skip the `FailedCall` and go on with the other predictions",
    )


def check_survives_empty_answers(strategy: Aggregator) -> None:
    """An LM may answer with nothing."""
    for count in (1, 13):
        _check_lessons(_run(strategy, count, ScriptedPredict(empty=True)), count)


def check_reads_are_counted(strategy: Aggregator) -> None:
    """What a guessed scan is counted as; a scan of nothing is none."""
    for count in COUNTS:
        reads = attempt(
            lambda count=count: strategy.reads(count),  # type: ignore[misc]
            f"`reads({count})` returns",
            "it is asked before a minibatch that may never be needed is read",
        )
        expect(
            isinstance(reads, int) and (reads >= 1 if count else reads == 0),
            f"`reads({count})` is a number of shards, {'1 or more' if count else '0'}",
            f"it is {reads!r}",
            "return how many shards a scan of so many reflections reads, or leave the method as inherited",
        )


CHECKS = (
    check_takes_any_number_of_reflections,
    check_no_reflections_cost_nothing,
    check_leaves_its_inputs_alone,
    check_same_stream_same_lessons,
    check_threads_may_share_it,
    check_every_call_goes_through_predict,
    check_survives_failed_calls,
    check_survives_empty_answers,
    check_reads_are_counted,
)
