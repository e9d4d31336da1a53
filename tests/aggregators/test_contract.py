"""What every aggregator does with reflections that arrive one after another, and with long ones.

That none, any number, failed calls and several uses at once are fine is in the conformance kit.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import ParallelScan, SingleCall, Union
from combee_dspy.records import FailedCall, Reflection
from combee_dspy.reflections import estimate_record_tokens
from tests.aggregators.doubles import World, at_random, facts, learner, mistakes, pending, turns

DEALT = [ParallelScan(fan_in=4), Union(fan_in=4)]
each_aggregator = pytest.mark.parametrize("aggregator", [*DEALT, SingleCall()], ids=repr)
each_dealt = pytest.mark.parametrize("aggregator", DEALT, ids=repr)


@each_aggregator
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

    reflections = [None if item.index in empty else item for item in mistakes(13)]
    reflections[5] = Reflection(5, {**mistakes(6)[5].record, "Trace": "step " * 15_000})
    at_once, arriving = World(script), World(script, at_random(seed))
    expected = at_once.run(aggregator, reflections)
    assert asyncio.run(arriving.stream(aggregator, reflections, order)) == expected
    assert arriving.warnings == at_once.warnings
    assert {call.place: call.inputs for call in arriving.calls} == {
        call.place: call.inputs for call in at_once.calls
    }


@each_dealt
def test_a_shard_is_read_before_the_reflections_of_others_are_there(aggregator):
    world, reflections = World(learner), mistakes(20)
    *_, last = aggregator.shards(20, world.context)

    async def scenario():
        futures = pending(20)
        task = asyncio.ensure_future(aggregator.aggregate(futures, world.context))
        for position in last:
            await turns(5)
            assert world.calls == []
            futures[position].set_result(reflections[position])
        await turns(5)
        (call,) = world.calls
        assert [record["Feedback"] for record in call.records] == [f"fact {at}" for at in last]
        for position in set(range(20)) - set(last):
            futures[position].set_result(reflections[position])
        assert facts(await task) == set(range(20))

    asyncio.run(scenario())


@each_dealt
def test_a_reflection_that_raises_ends_the_call_and_what_is_in_flight(aggregator):
    world, reflections = World(learner, turns=lambda: 10**6), mistakes(20)
    first, *_, last = aggregator.shards(20, world.context)

    async def scenario():
        futures = pending(20)
        task = asyncio.ensure_future(aggregator.aggregate(futures, world.context))
        for position in first:
            futures[position].set_result(reflections[position])
        await turns(5)
        assert len(world.calls) == 1
        missing = next(position for position in last if position not in first)
        futures[missing].set_exception(RuntimeError("the service is down"))
        with pytest.raises(RuntimeError, match="the service is down"):
            await task
        assert world.cancelled == 1
        # They belong to the search, which may need them elsewhere.
        assert not any(future.cancelled() for future in futures)

    asyncio.run(scenario())


@each_aggregator
def test_to_cancel_it_cancels_its_calls_and_not_the_reflections(aggregator):
    world = World(learner, turns=lambda: 10**6)

    async def scenario():
        futures = pending(13)
        for waiting in (True, False):
            task = asyncio.ensure_future(aggregator.aggregate(futures, world.context))
            await turns(9)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not any(future.cancelled() for future in futures)
            for reflection, future in zip(mistakes(13), futures, strict=True):
                if waiting:
                    future.set_result(reflection)
        assert 0 < len(world.calls) == world.cancelled

    asyncio.run(scenario())


@pytest.mark.parametrize("aggregator", [ParallelScan(max_call_tokens=8_000)], ids=repr)
def test_a_shard_too_long_for_one_call_is_read_by_several(aggregator):
    reflections = [
        Reflection(i, {"Trace": "x" * 4_000, "Feedback": f"fact {i}"}) for i in range(40)
    ]
    world = World(learner)
    lessons = world.run(aggregator, reflections)
    assert facts(lessons) == set(range(40))
    reads = [call for call in world.calls if "examples_with_feedback" in call.inputs]
    shards = aggregator.shards(40, world.context)
    assert len(reads) > len(shards)
    assert all(estimate_record_tokens(call.records) < 7_500 for call in reads)
    # Numbered by shard, then by call; all that a shard holds is read, in its order.
    assert [call.place for call in reads] == sorted(call.place for call in reads)
    for number, shard in enumerate(shards):
        records = [record for call in reads if call.place[2] == number for record in call.records]
        assert [record["Feedback"] for record in records] == [f"fact {at}" for at in shard]
    assert [node.node for node in lessons.nodes if node.level == 1] == list(range(len(reads)))


def test_reflections_longer_than_their_share_are_split_with_one_warning():
    reflections = [
        Reflection(i, {"Inputs": "x" * 4_000 * (i % 7), "Feedback": f"fact {i}"}) for i in range(60)
    ]
    world = World(learner)
    lessons = world.run(ParallelScan(max_call_tokens=9_000, max_lessons=100), reflections)
    assert facts(lessons) == set(range(60))
    (warning,) = world.warnings
    assert warning.startswith("reflection 2 of ") and warning.endswith("; and 37 more")


@pytest.mark.parametrize(
    "answer", [FailedCall("E: x"), {"new_instruction": " "}, {"new_instruction": None}, {"x": 1}]
)
def test_a_single_call_writes_the_instruction_or_says_why_there_is_none(answer):
    world = World(lambda name, inputs: {"new_instruction": "  Do better.\n"}, notes="90 tokens.")
    lessons = world.run(SingleCall(), mistakes(40))
    assert (lessons.rewrite, lessons.lessons) == ("Do better.", ())
    (call,) = world.calls
    assert len(call.records) == 40
    assert call.inputs["constraints"] == "90 tokens."
    lessons = World(lambda name, inputs: answer).run(SingleCall(), mistakes(4))
    assert lessons.rewrite is None
    assert lessons.nodes[0].failed
