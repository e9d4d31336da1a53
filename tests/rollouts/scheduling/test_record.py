"""Schedules on disk, and the order that a replay keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts.scheduling import LANES, SHARES, Place, Released, ReplayQueue, ScheduleRecord
from combee_dspy.rollouts.scheduling._job import Job
from combee_dspy.rollouts.scheduling._queue import LaneQueues

KEYS = st.text(st.characters(codec="utf-8"), max_size=5)
RELEASED = st.builds(
    Released,
    batch=st.integers(0, 9),
    reason=KEYS,
    limit=st.integers(1, 99),
    queued=st.integers(0, 99),
    tasks=st.lists(st.tuples(st.sampled_from(LANES), KEYS), max_size=4).map(tuple),
    again=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    iteration=st.integers(0, 9),
)


@given(st.lists(RELEASED, max_size=5))
def test_a_record_survives_its_file(tmp_path_factory, released):
    path = tmp_path_factory.mktemp("record") / "schedule.jsonl"
    record = ScheduleRecord(tuple(released))
    record.write(path)
    assert ScheduleRecord.read(path) == record
    # A killed process may have left half a line.
    with path.open("a", encoding="utf-8") as file:
        file.write('{"batch":1,"rea')
    assert ScheduleRecord.read(path) == record


GOOD = Released(1, "r", 2, 3, (("rollout", "k"),)).line()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]\n",
        '{"format": "combee-schedule", "version": 2}\n',
        GOOD,
        *(
            '{"format": "combee-schedule", "version": 1}\n' + line
            for line in (
                "null\n",
                "{}\n",
                "[" * 100_000 + "\n",
                GOOD.replace('"k"', "7"),
                GOOD.replace('"limit":2', '"limit":true'),
                GOOD.replace('"again":[]', '"again":["x"]'),
                GOOD.replace('"reason":"r"', '"reason":null'),
                GOOD.replace('"rollout",', ""),
            )
        ),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(tmp_path, text):
    path = tmp_path / "schedule.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentValueError, match="replay"):
        ScheduleRecord.read(path)


def test_keys_come_in_the_order_of_their_first_dispatch():
    record = ScheduleRecord(
        (
            Released(1, "r", 2, 3, (("rollout", "b"), ("rollout", ""), ("rollout", "a"))),
            Released(2, "r", 2, 3, (("rollout", "b"), ("rollout", "a")), again=(0,)),
        )
    )
    assert record.keys() == ("b", "a", "a")


def follow(keys) -> ReplayQueue:
    return ReplayQueue(keys, lambda: LaneQueues(LANES, SHARES, window=8))


def jobs(keys, lane="rollout") -> list[Job]:
    return [Job(serial, Place(lane=lane, key=key)) for serial, key in enumerate(keys, 1)]


@given(
    st.lists(st.sampled_from("abcdef"), max_size=20).flatmap(
        lambda keys: st.tuples(st.just(keys), st.permutations(keys))
    ),
    st.lists(st.integers(0, 4), max_size=40),
)
def test_recorded_tasks_come_out_in_the_recorded_order_whenever_they_come_in(both, rooms):
    recorded, submitted = both
    queue, out = follow(recorded), []
    arriving = jobs(submitted)
    rooms = iter(rooms)
    while arriving or len(queue):
        room = next(rooms, 3)
        if arriving:
            queue.push(arriving.pop(0))
        taken = queue.take(room, 4) if room else []
        for one in taken:
            queue.ended(one)
        out += taken
    assert [one.place.key for one in out] == list(recorded)


@given(
    st.lists(st.sampled_from("abcdef"), max_size=12),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "x", "y", ""]), st.sampled_from(LANES)), max_size=20),
    st.lists(st.integers(0, 19), max_size=6),
)
def test_a_queue_that_stalls_always_moves_whatever_is_missing_or_cancelled(recorded, submitted, cancelled):
    queue = follow(recorded)
    given_jobs = [Job(serial, Place(lane=lane, key=key)) for serial, (key, lane) in enumerate(submitted)]
    left = set()
    for one in given_jobs:
        queue.push(one)
        left.add(one.serial)
    for index in cancelled:
        if index < len(given_jobs):
            assert queue.discard(given_jobs[index]) == (index in left)
            left.discard(index)
    while len(queue):
        taken = queue.take(2, 2, stalled=True)
        assert taken
        for one in taken:
            left.remove(one.serial)
            queue.ended(one)
    assert not left


def test_a_later_task_waits_for_an_earlier_one_until_nothing_else_can_happen():
    queue = follow("abc")
    first, second, third = jobs("bca")
    queue.push(first)
    assert queue.take(5, 5) == []
    queue.push(third)
    assert queue.take(5, 5) == [third, first]
    queue.push(second)
    assert queue.take(5, 5) == [second]


def test_a_place_that_was_given_up_is_given_up_for_good():
    queue = follow("abc")
    (late, early) = jobs("ca")
    queue.push(late)
    assert queue.take(5, 5, stalled=True) == [late]
    # All places are passed, so it is ordered no more, and nothing waits for it.
    queue.push(early)
    assert early.position is None
    assert queue.take(5, 5) == [early]


def test_cancelling_a_task_lets_those_behind_it_go():
    queue = follow("abc")
    one, two = jobs("ab")
    queue.push(two)
    queue.push(one)
    assert queue.discard(one)
    assert queue.take(5, 5) == [two]


def test_unknown_keys_wait_for_the_end_and_tasks_without_a_key_do_not():
    queue = follow("ab")
    unknown, unordered, last, first = jobs(["x", "", "b", "a"])
    for one in (unknown, unordered, last):
        queue.push(one)
    assert queue.take(5, 5) == [unordered]
    assert queue.take(5, 5) == []
    queue.push(first)
    assert queue.take(5, 5) == [first, last, unknown]


def test_a_task_that_is_put_back_goes_first():
    queue = follow("abc")
    one, two, three = jobs("abc")
    for each in (one, two, three):
        queue.push(each)
    assert queue.take(2, 5) == [one, two]
    queue.ended(one)
    queue.put_back(one)
    assert queue.take(5, 5) == [one, three]


def test_a_task_that_is_put_back_takes_no_other_tasks_turn():
    queue = follow("abcd")
    one, two, four = jobs("abd")
    for each in (one, two, four):
        queue.push(each)
    assert queue.take(2, 5) == [one, two]
    queue.ended(one)
    queue.put_back(one)
    assert queue.take(5, 5) == [one]
