"""What every aggregator does, and how those over shards stream."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import (
    Aggregator,
    ParallelScan,
    SingleCall,
    Union,
)
from combee_dspy.records import FailedCall, Reflection
from combee_dspy.reflections import estimate_record_tokens
from tests.aggregators.doubles import World, at_random, facts, learner, made, pending, turns

ALL: list[Aggregator] = [
    ParallelScan(fan_in=4),
    Union(fan_in=4),
    SingleCall(),
]
STREAMING = ALL[:2]


@pytest.mark.parametrize("aggregator", ALL, ids=repr)
@given(
    order=st.permutations(range(13)),
    empty=st.sets(st.integers(0, 12), max_size=4),
    failing=st.integers(0, 3),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_the_result_does_not_depend_on_what_comes_first(aggregator, order, empty, failing, seed):
    def script(name, inputs):
        if failing and len(str(inputs)) % 4 == failing:
            return FailedCall("TimeoutError: too slow")
        return learner(name, inputs)

    given_ = [None if one.index in empty else one for one in made(13)]
    long = Reflection(5, {**made(6)[5].record, "Trace": "step " * 15_000})
    given_[5] = long
    there = World.of(script)
    expected = there.run(aggregator, given_)
    arriving = World.of(script, at_random(seed))
    assert asyncio.run(arriving.streamed(aggregator, given_, order)) == expected
    assert arriving.warnings == there.warnings
    assert {call.place: call.inputs for call in arriving.service.calls} == {
        call.place: call.inputs for call in there.service.calls
    }


@pytest.mark.parametrize("aggregator", STREAMING, ids=repr)
def test_a_shard_is_read_before_the_reflections_of_others_are_there(aggregator):
    async def scenario():
        world = World.of(learner)
        shards = aggregator.shards(20, world.context)
        assert shards is not None
        given_ = made(20)
        futures = pending(20)
        task = asyncio.ensure_future(aggregator.aggregate(futures, world.context))
        for position in shards[-1]:
            await turns(5)
            assert world.service.calls == []
            futures[position].set_result(given_[position])
        await turns(5)
        (call,) = world.service.calls
        assert [record["Feedback"] for record in call.records] == [
            f"fact {position}" for position in shards[-1]
        ]
        for position, future in enumerate(futures):
            if not future.done():
                future.set_result(given_[position])
        assert facts(await task) == set(range(20))

    asyncio.run(scenario())


@pytest.mark.parametrize("aggregator", STREAMING, ids=repr)
def test_a_reflection_that_raises_ends_the_call_and_what_is_in_flight(aggregator):
    async def scenario():
        world = World.of(learner, turns=lambda: 10**6)
        shards = aggregator.shards(20, world.context)
        assert shards is not None
        given_, futures = made(20), pending(20)
        task = asyncio.ensure_future(aggregator.aggregate(futures, world.context))
        for position in shards[0]:
            futures[position].set_result(given_[position])
        await turns(5)
        assert len(world.service.calls) == 1
        last = next(position for position in shards[-1] if not futures[position].done())
        futures[last].set_exception(RuntimeError("the service is down"))
        with pytest.raises(RuntimeError, match="the service is down"):
            await task
        assert world.service.cancelled == 1
        # They belong to the search, which may need them elsewhere.
        assert not any(future.cancelled() for future in futures)

    asyncio.run(scenario())


@pytest.mark.parametrize("aggregator", ALL, ids=repr)
def test_to_cancel_it_cancels_its_calls_and_not_the_reflections(aggregator):
    async def scenario():
        world = World.of(learner, turns=lambda: 10**6)
        futures = pending(13)
        waiting = asyncio.ensure_future(aggregator.aggregate(futures, world.context))
        await turns(5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not any(future.cancelled() for future in futures)
        for reflection, future in zip(made(13), futures, strict=True):
            future.set_result(reflection)
        calling = asyncio.ensure_future(aggregator.aggregate(futures, world.context))
        await turns(9)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert 0 < len(world.service.calls) == world.service.cancelled

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "aggregator", [ParallelScan(max_call_tokens=8_000), Union(max_call_tokens=8_000)], ids=repr
)
def test_a_shard_too_long_for_one_call_is_read_by_several(aggregator):
    given_ = [Reflection(i, {"Trace": "x" * 4_000, "Feedback": f"fact {i}"}) for i in range(40)]
    world = World.of(learner)
    lessons = world.run(aggregator, given_)
    assert facts(lessons) == set(range(40))
    reads = [call for call in world.service.calls if "examples_with_feedback" in call.inputs]
    shards = aggregator.shards(40, world.context)
    assert shards is not None
    assert len(reads) > len(shards)
    assert all(estimate_record_tokens(call.records) < 7_500 for call in reads)
    # Numbered by shard, then by call; all that a shard holds is read, in its order.
    assert [call.place for call in reads] == sorted(call.place for call in reads)
    seen = [
        [r["Feedback"] for call in reads if call.place[2] == shard for r in call.records]
        for shard in range(2)
    ]
    assert seen == [[f"fact {position}" for position in shard] for shard in shards[:2]]
    assert [node.node for node in lessons.nodes if node.level == 1] == list(range(len(reads)))


def test_reflections_longer_than_their_share_are_split_and_said_once():
    given_ = [
        Reflection(i, {"Inputs": "x" * 4_000 * (i % 7), "Feedback": f"fact {i}"}) for i in range(60)
    ]
    world = World.of(learner)
    lessons = world.run(ParallelScan(max_call_tokens=9_000, max_lessons=100), given_)
    assert facts(lessons) == set(range(60))
    assert world.warnings[0].startswith("reflection 2 of ")
    assert world.warnings[0].endswith("; and 37 more")
    assert len(world.warnings) == 1
