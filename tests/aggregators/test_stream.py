from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import ParallelScan, ReadyShard, Scan, SingleCall, Summarize, TopK, Union
from combee_dspy.aggregators._stream import split_calls
from combee_dspy.events import ErrorRaised, Event, NodeFinished, ReflectionTrimmed, ScanFinished, ScanStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext

STREAMING = [
    Union(max_lessons=50),
    Union(window=None, copies=1),
    ParallelScan(),
    ParallelScan(window=3, fan_in=5, max_call_tokens=8_000),
]


def made(size: int, teaching: Sequence[int], long: Sequence[int] = ()) -> list[Reflection | None]:
    return [
        Reflection(i, {"Inputs": "some words " * (900 if i in long else 1), "Feedback": f"fact {i}"})
        if i in teaching
        else None
        for i in range(size)
    ]


def streamed(
    aggregator: Any, material: Sequence[Reflection | None], order: Sequence[int], early: Sequence[bool], context: Any
) -> Lessons:
    scan = aggregator.begin(len(material), context)
    assert isinstance(scan, Scan)
    read = iter(early)
    for position in order:
        for shard in scan.feed(position, material[position]):
            if next(read, False):
                scan.read(shard)
    return scan.finish()


def plain(event: Event) -> Any:
    """An event without what the clock says."""
    if isinstance(event, ScanFinished):
        return (event.nodes, event.lessons)
    return event


@pytest.mark.parametrize("aggregator", STREAMING, ids=str)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixtures hold no state
@given(data=st.data())
def test_arrival_order_and_early_reads_change_nothing(
    aggregator: Any, data: Any, context_of: Any, learner: Any
) -> None:
    size = data.draw(st.integers(1, 90), "size")
    teaching = data.draw(st.sets(st.integers(0, size - 1)), "teaching")
    long = data.draw(st.sets(st.integers(0, size - 1), max_size=12), "long")
    material = made(size, sorted(teaching), sorted(long))
    context, predict, events = context_of(learner)
    reference = streamed(aggregator, material, range(size), [], context)
    order = data.draw(st.permutations(range(size)), "order")
    early = data.draw(st.lists(st.booleans(), max_size=40), "early")
    context, other, others = context_of(learner)
    assert streamed(aggregator, material, order, early, context) == reference
    assert list(map(plain, others)) == list(map(plain, events))

    def prompts(asked: Any) -> Any:
        return sorted((name, repr(values)) for name, calls in asked.batches for values in calls)

    assert prompts(other) == prompts(predict)
    assert [name for name, _ in other.batches if name == "MergeLessons"] == [
        name for name, _ in predict.batches if name == "MergeLessons"
    ]


@pytest.mark.parametrize("aggregator", STREAMING, ids=str)
def test_a_batch_that_is_there_is_the_stream_of_itself(aggregator: Any, context_of: Any, learner: Any) -> None:
    material = made(70, range(70), [3, 40])
    context, predict, _ = context_of(learner)
    at_once = aggregator.aggregate(material, context)
    context, _, _ = context_of(learner)
    assert streamed(aggregator, material, range(69, -1, -1), [True] * 99, context) == at_once
    # Nothing waits for another shard where everything is there: one batch reads them all.
    assert [name for name, _ in predict.batches].count(predict.batches[0][0]) == 1


@pytest.mark.parametrize("aggregator", [Union(), ParallelScan(window=4)], ids=str)
def test_a_window_lets_shards_fire_before_the_last_rollout(aggregator: Any, context_of: Any, learner: Any) -> None:
    context, predict, events = context_of(learner)
    scan = aggregator.begin(240, context)
    ready: list[ReadyShard] = []
    material = made(240, range(240))
    for position in range(160):
        ready += scan.feed(position, material[position])
    assert events == []
    assert sorted(shard.position for shard in ready) == list(range(17))
    for shard in ready:
        scan.read(shard)
    assert len(predict.batches) == 17
    started = events[0]
    assert isinstance(started, ScanStarted) and started.levels[0] == 30
    assert len(events) == 1
    late = [shard for position in range(160, 240) for shard in scan.feed(position, material[position])]
    assert sorted(shard.position for shard in late) == list(range(17, 30))
    scan.finish()
    assert len(predict.batches[17][1]) == 13


def test_an_empty_shard_makes_no_call_and_no_node(context_of: Any, learner: Any, facts: Any) -> None:
    context, predict, _ = context_of(learner)
    scan = Union().begin(240, context)
    ready = [shard for position, one in enumerate(made(240, range(80, 240))) for shard in scan.feed(position, one)]
    assert sorted(shard.position for shard in ready) == list(range(8, 30))
    lessons = scan.finish()
    assert [node.node for node in lessons.nodes if node.level == 1] == list(range(22))
    assert facts(lessons) <= set(range(80, 240))
    assert len(predict.batches[0][1]) == 22


@pytest.mark.parametrize("aggregator", [Union(), ParallelScan()], ids=str)
@pytest.mark.parametrize("size", [0, 5])
def test_nothing_to_teach_is_no_call_and_no_event(aggregator: Any, size: int, context_of: Any, learner: Any) -> None:
    context, predict, events = context_of(learner)
    assert streamed(aggregator, [None] * size, range(size), [], context) == Lessons("answer")
    assert predict.batches == [] and events == []


def test_positions_never_fed_teach_nothing(context_of: Any, learner: Any, facts: Any) -> None:
    context, _, _ = context_of(learner)
    scan = ParallelScan(max_lessons=99).begin(9, context)
    scan.feed(4, Reflection(0, {"Feedback": "fact 4"}))
    assert facts(scan.finish()) == {4}


def test_a_shard_too_long_for_a_call_is_read_by_several_in_order(context_of: Any, learner: Any, facts: Any) -> None:
    material = [Reflection(i, {"Inputs": "word " * 900, "Feedback": f"fact {i}"}) for i in range(36)]
    context, predict, _ = context_of(learner)
    aggregator = Union(copies=1, max_call_tokens=6_000)
    lessons = streamed(aggregator, material, range(36), [], context)
    nodes = [node for node in lessons.nodes if node.level == 1]
    assert len(nodes) == len(predict.batches[0][1]) == 12
    assert [node.node for node in nodes] == list(range(len(nodes)))
    assert facts(lessons) == set(range(36))
    # Where the length is expected, shards are planned for it and none is divided.
    context, predict, _ = context_of(learner)
    scan = aggregator.begin(36, context, tokens=1_200)
    ready = [shard for position, one in enumerate(material) for shard in scan.feed(position, one)]
    assert {len(shard.calls) for shard in ready} == {1}
    assert facts(scan.finish()) == set(range(36))


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 100))
def test_divided_shards_fit_in_the_fewest_calls(tokens: list[int], room: int) -> None:
    items = [Reflection(i, {}) for i in range(len(tokens))]
    calls = split_calls(items, tokens, room)
    assert [item for call in calls for item in call] == items
    loads = [sum(tokens[item.index] for item in call) for call in calls]
    assert all(0 < load <= room for load in loads)
    # Independent of the function: filling each call as far as it goes is optimal for consecutive items.
    fewest, taken = (1 if tokens else 0), 0
    for size in tokens:
        if taken + size > room:
            fewest, taken = fewest + 1, 0
        taken += size
    assert len(calls) == fewest


def test_long_reflections_are_said_once_and_in_order(context_of: Any, learner: Any) -> None:
    context, _, events = context_of(learner)
    aggregator = ParallelScan(max_call_tokens=8_000)
    streamed(aggregator, made(30, range(30), [2, 20, 11]), range(29, -1, -1), [True] * 30, context)
    assert [event.index for event in events if isinstance(event, ReflectionTrimmed)] == [2, 11, 20]


def test_shards_are_read_by_many_threads_once_each(context_of: Any, learner: Any, facts: Any) -> None:
    together = threading.Barrier(3, timeout=20)
    context, predict, _ = context_of(learner)
    scan = Union(copies=1, window=1).begin(9, context)
    ready = [shard for position, one in enumerate(made(9, range(9))) for shard in scan.feed(position, one)]

    def read(number: int) -> None:
        together.wait()
        for shard in ready[number:] + ready[:number]:
            scan.read(shard)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(read, range(3)))
    assert len(predict.batches) == 3
    assert facts(scan.finish()) == set(range(9))
    assert len(predict.batches) == 3


def test_the_end_waits_for_a_read_under_way_and_takes_over_one_that_raised(learner: Any, facts: Any) -> None:
    import dspy

    inside, leave = threading.Event(), threading.Event()
    asked: list[int] = []

    def predict(signature: Any, inputs: Sequence[dict[str, Any]], *, role: str = "proposer") -> list[Any]:
        asked.append(len(inputs))
        if len(asked) == 1:
            inside.set()
            assert leave.wait(20)
            raise RuntimeError("the way is closed")
        leave.set()
        return [dspy.Prediction(**learner(signature.__name__, values)) for values in inputs]

    events: list[Event] = []
    scan = Union(copies=1, window=1).begin(9, StrategyContext("answer", "Answer.", predict, events.append))
    assert scan is not None
    ready = [shard for position, one in enumerate(made(9, range(9))) for shard in scan.feed(position, one)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(scan.read, ready[0])
        assert inside.wait(20)
        lessons = scan.finish()
        assert isinstance(reading.exception(), RuntimeError)
    assert asked == [1, 2, 1]
    assert facts(lessons) == set(range(9))
    assert [node.node for node in lessons.nodes if node.level == 1] == [0, 1, 2]
    assert not any(isinstance(event, ErrorRaised) for event in events)
    assert [event.output.level for event in events if isinstance(event, NodeFinished)] == [1, 1, 1, 2]


def test_feeding_wrongly_is_refused(context_of: Any, learner: Any) -> None:
    context, _, _ = context_of(learner)
    scan = Union().begin(2, context)
    scan.feed(0, None)
    for position in (0, 2, -1):
        with pytest.raises(ArgumentValueError) as caught:
            scan.feed(position, None)
        assert caught.value.argument == "position"
    scan.finish()
    with pytest.raises(ArgumentValueError):
        scan.feed(1, None)


@pytest.mark.parametrize("aggregator", [Union(sharding="topic"), Summarize(), TopK(), SingleCall()], ids=str)
def test_those_that_must_see_everything_first_say_so(aggregator: Any, context_of: Any, learner: Any) -> None:
    context, _, _ = context_of(learner)
    assert aggregator.begin(9, context) is None


@pytest.mark.parametrize("given", [{"size": -1}, {"size": 3, "tokens": 0}])
def test_a_scan_of_no_size_is_refused(given: dict[str, int], context_of: Any, learner: Any) -> None:
    context, _, _ = context_of(learner)
    with pytest.raises(ArgumentValueError):
        Union().begin(context=context, **given)


def test_a_scan_is_begun_only_with_parameters_in_range(context_of: Any, learner: Any) -> None:
    context, _, _ = context_of(learner)
    with pytest.raises(ArgumentValueError, match="copies"):
        Union(copies=0).begin(3, context)


@pytest.mark.parametrize(
    "aggregator", [Union(), Union(window=3, fan_in=5), Union(window=None, fan_in=5), ParallelScan(copies=3)], ids=str
)
@pytest.mark.parametrize("size", [0, 3, 40, 60, 61, 240])
def test_reads_are_the_shards_of_the_plan(aggregator: Any, size: int, context_of: Any, learner: Any) -> None:
    context, predict, _ = context_of(learner)
    streamed(aggregator, made(size, range(size)), range(size), [], context)
    assert aggregator.reads(size) == (len(predict.batches[0][1]) if size else 0)
    assert TopK().reads(size) == math.isqrt(size)
