"""Composition within a lane, priority and shares between lanes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.rollouts.scheduling import LANES, SHARES, Place
from combee_dspy.rollouts.scheduling._batches import ComposedLane
from combee_dspy.rollouts.scheduling._job import Job
from combee_dspy.rollouts.scheduling._queue import LaneQueues


def job(serial: int, prefix: str = "", tokens: int | None = None, lane: str = "rollout") -> Job:
    return Job(serial, Place(lane=lane, key=str(serial), prefix=prefix, tokens=tokens))


def drain(lane: ComposedLane) -> list[Job]:
    out = []
    while len(lane):
        out.append(lane.peek())
        lane.take(out[-1])
    return out


# A script of what happens to a lane: add a task of some prefix and length, take one, or cancel one.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abc"), st.sampled_from([None, 3, 100, 5000])),
        st.tuples(st.just("take"), st.just(""), st.just(None)),
        st.tuples(st.just("back"), st.just(""), st.just(None)),
        st.tuples(st.just("discard"), st.just(""), st.integers(0, 30)),
    ),
    max_size=120,
)


@given(STEPS, st.integers(1, 12))
def test_no_task_is_lost_doubled_or_overtaken_past_the_window(steps, window):
    lane, waiting, out, overtaken = ComposedLane(window), {}, [], {}
    serial = 0
    for what, prefix, value in steps:
        if what == "push":
            serial += 1
            waiting[serial] = job(serial, prefix, value)
            overtaken[serial] = 0
            lane.push(waiting[serial])
        elif what == "take" and waiting:
            one = lane.peek()
            lane.take(one)
            assert waiting.pop(one.serial) is one
            out.append(one)
            for older in waiting:
                overtaken[older] += older < one.serial
        elif what == "back" and out:
            one = out.pop()
            lane.put_back(one)
            waiting[one.serial] = one
        elif what == "discard" and waiting:
            gone = waiting.pop(sorted(waiting)[value % len(waiting)])
            assert lane.discard(gone)
            assert not lane.discard(gone)
        assert len(lane) == len(waiting)
    assert {one.serial for one in drain(lane)} == set(waiting)
    # A task that was put back goes at once, so only tasks between it and the window can have overtaken others.
    assert all(count < window for count in overtaken.values()) or any(what == "back" for what, _, _ in steps)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([10, 1000])), max_size=60))
def test_within_the_window_each_prefix_and_length_is_one_run(kinds):
    lane = ComposedLane(window=1000)
    for serial, (prefix, tokens) in enumerate(kinds):
        lane.push(job(serial, prefix, tokens))
    out = drain(lane)
    prefixes = [one.place.prefix for one in out]
    groups = [(one.place.prefix, one.bucket) for one in out]
    for seen in (prefixes, groups):
        assert sum(1 for a, b in itertools.pairwise(seen) if a != b) == max(0, len(set(seen)) - 1)
    for group in set(groups):
        serials = [one.serial for one, its in zip(out, groups, strict=True) if its == group]
        assert serials == sorted(serials)


@given(st.lists(st.sampled_from("abcd"), max_size=60))
def test_a_window_of_one_is_first_in_first_out(prefixes):
    lane = ComposedLane(window=1)
    for serial, prefix in enumerate(prefixes):
        lane.push(job(serial, prefix))
    assert [one.serial for one in drain(lane)] == list(range(len(prefixes)))


def test_what_was_put_back_twice_comes_out_once_and_first():
    lane = ComposedLane(window=4)
    for serial in range(3):
        lane.push(job(serial))
    one = lane.peek()
    for _ in range(2):
        lane.take(one)
        lane.put_back(one)
        assert lane.peek() is one
    assert [each.serial for each in drain(lane)] == [0, 1, 2]


def test_the_most_urgent_lane_goes_first_where_no_share_is_owed():
    queue = LaneQueues(LANES, {}, window=8)
    for serial, lane in enumerate(reversed(LANES)):
        queue.push(job(serial, lane=lane))
    assert [one.place.lane for one in queue.take(10, 10)] == list(LANES)


@given(st.integers(1, 64), st.lists(st.sampled_from(LANES), min_size=1, max_size=200))
def test_a_lane_below_its_share_of_the_slots_is_served_before_any_that_is_not(slots, lanes):
    queue = LaneQueues(LANES, SHARES, window=8)
    waiting, flying = dict.fromkeys(LANES, 0), dict.fromkeys(LANES, 0)
    for serial, lane in enumerate(lanes):
        queue.push(job(serial, lane=lane))
        waiting[lane] += 1
    in_flight: list[Job] = []
    while len(queue):
        if len(in_flight) == slots:
            ended = in_flight.pop(0)
            queue.ended(ended)
            flying[ended.place.lane] -= 1
        owed = {lane for lane in LANES if waiting[lane] and flying[lane] < int(SHARES.get(lane, 0) * slots)}
        (taken,) = queue.take(1, slots)
        lane = taken.place.lane
        assert not owed or lane in owed
        in_flight.append(taken)
        waiting[lane] -= 1
        flying[lane] += 1


@given(st.dictionaries(st.sampled_from(LANES), st.floats(0, 0.2), min_size=1), st.integers(20, 150))
def test_with_one_slot_every_waiting_lane_gets_its_share_of_the_dispatches(shares, dispatches):
    queue = LaneQueues(LANES, shares, window=8)
    for serial in range(dispatches):
        for lane in LANES:
            queue.push(job(serial, lane=lane))
    counts = dict.fromkeys(LANES, 0)
    for _ in range(dispatches):
        (taken,) = queue.take(1, 1)
        queue.ended(taken)
        counts[taken.place.lane] += 1
    for lane, share in shares.items():
        assert counts[lane] >= share * dispatches - len(LANES) - 1
    assert sum(counts.values()) == dispatches


@given(st.lists(st.sampled_from([1, 5, 40, 60, 500]), min_size=1, max_size=40), st.integers(1, 200))
def test_a_batch_keeps_to_its_tokens_and_to_one_length(sizes, tokens):
    queue = LaneQueues(LANES, SHARES, window=16)
    for serial, size in enumerate(sizes):
        queue.push(job(serial, tokens=size))
    seen = 0
    while len(queue):
        batch = queue.take(100, 100, tokens=tokens)
        seen += len(batch)
        assert batch
        assert len({one.bucket for one in batch}) == 1
        assert len(batch) == 1 or sum(one.place.tokens for one in batch) <= tokens
    assert seen == len(sizes)


def test_a_batch_that_goes_on_takes_only_what_fits():
    queue = LaneQueues(LANES, SHARES, window=16)
    queue.push(job(1, tokens=100))
    assert queue.take(5, 5, tokens=50, bucket=(100).bit_length()) == []
    assert queue.take(5, 5, tokens=200, bucket=2) == []
    assert [one.serial for one in queue.take(5, 5, tokens=100, bucket=(100).bit_length())] == [1]


def test_nothing_is_kept_of_tasks_that_are_gone():
    lane = ComposedLane(window=8)
    for serial in range(100):
        one = job(serial, prefix=str(serial), tokens=serial)
        lane.push(one)
        lane.take(lane.peek()) if serial % 2 else lane.discard(one)
    drain(lane)
    assert not lane._groups
    assert not lane._all
