"""Several runs on one scheduler: who is served next, and what a seat keeps to itself."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import CancelledError, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.events import ScheduleDecided
from combee_dspy.exceptions import TaskCancelledError
from combee_dspy.registry import Spec
from combee_dspy.rollouts import Asyncio, Threads, current_session
from combee_dspy.rollouts.scheduling import LANES, SHARES, Place, Scheduler, SharedPool, current_place, placed
from combee_dspy.rollouts.scheduling._job import Job
from combee_dspy.rollouts.scheduling._queue import LaneQueues
from combee_dspy.rollouts.scheduling._tenants import Tenants


def job(serial: int, tenant: str, lane: str = "rollout") -> Job:
    return Job(serial, Place(lane=lane, key=str(serial), tenant=tenant))


def queue(tenants: Tenants | None = None, shares=SHARES) -> LaneQueues:
    return LaneQueues(LANES, shares, 8, tenants)


TENANTS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), TENANTS, st.sampled_from(LANES)),
        st.tuples(st.just("take"), st.just(""), st.integers(1, 4)),
        st.tuples(st.just("end"), st.just(""), st.integers(0, 20)),
        st.tuples(st.just("discard"), st.just(""), st.integers(0, 20)),
        st.tuples(st.just("back"), st.just(""), st.integers(0, 20)),
    ),
    max_size=80,
)


@given(STEPS, st.integers(0, 4), st.integers(1, 9))
def test_no_task_is_lost_and_no_tenant_exceeds_its_part(steps, parts, slots):
    tenants = Tenants()
    tenants.parts = parts
    lanes, waiting, flying, serial = queue(tenants), {}, [], 0
    most = max(1, slots // parts) if parts else slots
    for what, tenant, value in steps:
        if what == "push":
            serial += 1
            waiting[serial] = job(serial, tenant, value)
            lanes.push(waiting[serial])
        elif what == "take":
            room = min(value, slots - len(flying))
            taken = lanes.take(max(0, room), slots)
            for one in taken:
                assert waiting.pop(one.serial) is one
            flying += taken
            counts = Counter(one.place.tenant for one in flying)
            assert not parts or max(counts.values(), default=0) <= most
            if len(taken) < room:
                # Whoever still waits has its part.
                assert all(counts[one.place.tenant] >= most for one in waiting.values())
        elif what in ("end", "back") and flying:
            one = flying.pop(value % len(flying))
            lanes.ended(one)
            if what == "back":
                lanes.put_back(one)
                waiting[one.serial] = one
        elif what == "discard" and waiting:
            key = sorted(waiting)[value % len(waiting)]
            assert lanes.discard(waiting.pop(key))
        assert len(lanes) == len(waiting)


def test_a_tenant_with_many_tasks_does_not_keep_one_with_few_waiting():
    lanes = queue()
    for serial in range(100):
        lanes.push(job(serial, "many"))
    for serial in range(100, 104):
        lanes.push(job(serial, "few"))
    first = lanes.take(8, 8)
    assert Counter(one.place.tenant for one in first) == {"many": 4, "few": 4}


def test_a_tenant_alone_has_all_slots():
    lanes = queue()
    for serial in range(10):
        lanes.push(job(serial, "one"))
    assert [one.serial for one in lanes.take(8, 8)] == list(range(8))


def test_urgency_comes_before_turns():
    lanes = queue(shares={})
    for serial in range(4):
        lanes.push(job(serial, "one", "reflection"))
    lanes.push(job(9, "other", "validation"))
    assert [one.serial for one in lanes.take(5, 5)] == [0, 1, 2, 3, 9]


def pool(executor=None, workers: int = 2, **kwargs) -> SharedPool:
    made = executor or Threads()
    return SharedPool(made, lambda growth, tell: Scheduler(made.start(workers), emit=tell, **kwargs))


def test_a_seat_is_closed_by_its_run_and_the_pool_goes_on():
    shared = pool()
    one, other = shared.seat("one").start(2), shared.seat("other").start(2)
    assert one.submit(sum, [1, 2]).result() == 3
    one.close()
    one.close()
    with pytest.raises(RuntimeError, match="closed"):
        one.submit(sum, [1])
    assert other.submit(sum, [1, 2]).result() == 3
    other.close()
    shared.close()
    shared.close()


def test_closing_a_seat_cancels_what_waits_of_it_and_of_no_other():
    shared = pool(workers=1)
    gate, begun = threading.Event(), threading.Event()
    one, other = shared.seat("one").start(1), shared.seat("other").start(1)

    def hold() -> str:
        begun.set()
        assert gate.wait(30)
        return "held"

    running = one.submit(hold)
    assert begun.wait(30)
    waiting, others = one.submit(sum, [1]), other.submit(sum, [2])
    closing = threading.Thread(target=one.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(30)
    assert not others.done()
    gate.set()
    closing.join(30)
    assert running.result(0) == "held"
    assert others.result(30) == 2
    shared.close()


def test_a_seat_that_is_cancelled_takes_nothing_more():
    shared = pool(workers=1)
    seat = shared.seat("one")
    session = seat.start(1)
    seat.cancel()
    with pytest.raises(TaskCancelledError, match="'one'"):
        session.submit(sum, [1])
    with pytest.raises(TaskCancelledError):
        seat.start(1)
    session.close()
    shared.close()


def test_tasks_carry_their_tenant_and_keep_their_place():
    shared = pool()
    session = shared.seat("one").start(2)

    def nested() -> Place:
        return session.submit(current_place).result()

    with placed(Place(lane="reflection", key="scan/1", iteration=3)):
        outer, inner = session.submit(current_place).result(), session.submit(nested).result()
    assert outer == inner == Place(lane="reflection", key="one/scan/1", iteration=3, tenant="one")
    session.close()
    shared.close()


@pytest.mark.parametrize("executor", [Threads(), Asyncio()])
def test_tasks_that_wait_for_tasks_end_with_one_worker(executor):
    shared = pool(executor, workers=1)
    sessions = [shared.seat(name).start(1) for name in ("one", "other")]

    def nested(session, depth: int) -> int:
        return 1 if not depth else 1 + session.submit(nested, session, depth - 1).result()

    futures = [session.submit(nested, session, 3) for session in sessions]
    assert wait(futures, 30).not_done == set()
    assert [future.result() for future in futures] == [4, 4]
    for session in sessions:
        session.close()
    shared.close()


def test_a_seat_stands_for_the_executor_in_records_and_programs_are_checked():
    class Picky(Threads):
        def check_program(self, program, metric):
            raise ValueError(program)

    picky = Picky()
    shared = pool(picky)
    seat = shared.seat("one")
    assert Spec.of(seat) == Spec.of(picky)
    with pytest.raises(ValueError, match="a program"):
        seat.check_program("a program", None)
    shared.close()


def test_every_run_hears_decisions_and_a_hook_ends_only_its_own():
    shared = pool(workers=2)
    sessions = [shared.seat(name).start(2) for name in ("one", "other", "deaf")]
    heard: list[ScheduleDecided] = []
    told = threading.Event()

    def ending(event) -> None:
        told.set()
        raise KeyboardInterrupt

    def hears(event) -> None:
        heard.append(event)

    sessions[0].listen(ending)
    sessions[1].listen(hears)
    sessions[0].submit(sum, [1]).result()
    assert told.wait(30)
    with pytest.raises(KeyboardInterrupt):
        # Told by the scheduler's thread: it may take another submission until it is raised.
        for _ in range(1_000_000):
            sessions[0].submit(sum, [1]).result()
    assert sessions[1].submit(sum, [1]).result() == 1
    for session in sessions:
        session.close()
    shared.close()
    assert heard
    assert {event.decision for event in heard} == {"flush"}


def test_workers_see_the_scheduler_whoever_submits():
    shared = pool()
    session = shared.seat("one").start(2)
    assert session.submit(current_session).result() is shared.scheduler
    assert session.workers == 2
    session.close()
    shared.close()
