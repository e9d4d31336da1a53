"""The scheduler over real workers: conformance, nested waits, timers, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from concurrent.futures import Future, as_completed

import pytest

from combee_dspy.lms import LMPort
from combee_dspy.rollouts import Asyncio, Executor, Threads, current_session, run_rollout, tell_pressure
from combee_dspy.rollouts.scheduling import (
    FixedLimit,
    Place,
    Scheduler,
    ScheduleRecord,
    Scheduling,
    placed,
    queue_at_least,
    waited,
)
from combee_dspy.testing import ScriptedLM, as_json, checks_for

# Bounds a hang, measures nothing.
PATIENCE = 60.0


class Scheduled(Executor):
    """Any executor under a scheduler."""

    name = "scheduled"

    def __init__(self, inner):
        self.inner = inner

    def start(self, workers):
        return Scheduler(self.inner.start(workers))


@contextlib.contextmanager
def scheduler_over(workers=4, executor=None, **kwargs):
    scheduler = Scheduler((executor or Threads()).start(workers), **kwargs)
    try:
        yield scheduler
    finally:
        scheduler.close()


@pytest.mark.parametrize(
    ("strategy", "check"),
    [
        pytest.param(strategy, check, id=f"{strategy!r}-{check.__name__}")
        for strategy in (Scheduled(Threads()), Scheduled(Asyncio()), Scheduled(Scheduled(Threads())))
        for check in checks_for(strategy)
        # What an executor is beside its session is not the scheduler's.
        if check.__module__.endswith("executors")
    ],
)
def test_an_executor_under_a_scheduler_conforms(strategy, check):
    check(strategy)


@pytest.mark.parametrize("slots", [1, 2])
def test_nested_lm_calls_end_with_as_few_slots_as_one(slots):
    lm = ScriptedLM(lambda request: as_json({"answer": "yes"}))
    with scheduler_over(4, limit=FixedLimit(slots)) as scheduler:
        port = LMPort(scheduler, {"proposer": lm})

        def task(number):
            answers = port.predict("question -> answer", [{"question": f"{number} {part}"} for part in range(3)])
            return [answer.answer for answer in answers], current_session() is scheduler

        futures = [scheduler.submit(task, number) for number in range(6)]
        assert [future.result(PATIENCE) for future in futures] == [(["yes"] * 3, True)] * 6
        lanes = scheduler.account().lanes
        for lane, tasks in (("rollout", 6), ("reflection", 18)):
            assert (lanes[lane].waiting, lanes[lane].in_flight, lanes[lane].failed) == (0, 0, 0)
            assert lanes[lane].submitted == lanes[lane].finished + lanes[lane].cancelled == tasks


@pytest.mark.parametrize("slots", [1, 3])
def test_nested_waits_on_results_end_with_as_few_slots_as_one(slots):
    with scheduler_over(3, limit=FixedLimit(slots)) as scheduler:

        def tree(depth):
            if depth == 0:
                return 1
            parts = [scheduler.submit(tree, depth - 1) for _ in range(2)]
            return sum(part.result() for part in parts)

        futures = [scheduler.submit(tree, 4) for _ in range(4)]
        assert [future.result(PATIENCE) for future in futures] == [16] * 4


def test_coroutine_functions_are_awaited_at_their_place_and_within_the_limit():
    flying, most = 0, 0

    async def work(number):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        return number, current_session() is scheduler

    with scheduler_over(8, Asyncio(), limit=FixedLimit(3)) as scheduler:
        assert scheduler.awaits
        futures = [scheduler.submit(work, number) for number in range(30)]
        assert [future.result(PATIENCE) for future in futures] == [(number, True) for number in range(30)]
        assert most <= 3


def test_a_thread_that_waits_for_a_coroutine_function_awaits_it_itself():
    async def inner():
        await asyncio.sleep(0)
        return "awaited"

    with scheduler_over(1, Asyncio()) as scheduler:
        assert scheduler.submit(lambda: scheduler.submit(inner).result()).result(PATIENCE) == "awaited"
    assert not hasattr(scheduler, "run_rollout")


def test_many_threads_submit_cancel_and_wait_and_nothing_is_lost():
    with scheduler_over(8, limit=FixedLimit(5), scheduling=Scheduling(preempt="rollback")) as scheduler:
        done, futures, lock = [], [], threading.Lock()
        begin = threading.Barrier(6)

        def submitter(name):
            begin.wait(PATIENCE)
            for number in range(200):
                lane = ("rollout", "reflection", "validation", "speculative")[(number + name) % 4]
                with placed(Place(lane=lane, prefix=str(number % 3), tokens=number)):
                    future = scheduler.submit(done.append, (name, number))
                if number % 7 == 0:
                    future.cancel()
                with lock:
                    futures.append(future)

        threads = [threading.Thread(target=submitter, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        ended = list(as_completed(futures, timeout=PATIENCE))
        assert len(ended) == 1200
        cancelled = sum(future.cancelled() for future in futures)
        assert len(done) == len(set(done)) == 1200 - cancelled
    lanes = scheduler.account().lanes.values()
    assert sum(lane.finished for lane in lanes) == len(done)
    assert sum(lane.cancelled for lane in lanes) == cancelled
    assert all(lane.waiting == lane.in_flight == 0 for lane in lanes)


def test_more_urgent_work_overtakes_what_waits_for_the_same_workers():
    gate, running, log = threading.Event(), threading.Event(), []

    def block():
        running.set()
        assert gate.wait(PATIENCE)

    with scheduler_over(1) as scheduler:
        scheduler.submit(block)
        assert running.wait(PATIENCE)
        futures = []
        for lane in ("speculative", "rollout", "reflection"):
            with placed(Place(lane=lane)):
                futures.append(scheduler.submit(log.append, lane))
        gate.set()
        for future in futures:
            future.result(PATIENCE)
    assert log == ["reflection", "rollout", "speculative"]


def test_a_rule_that_waits_for_the_clock_is_woken_by_it():
    rule = Scheduling(flush=queue_at_least(100) | waited(0.01))
    with scheduler_over(2, scheduling=rule) as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0
        assert scheduler.submit(int).result(PATIENCE) == 0


def test_patience_is_woken_by_the_clock_too():
    rule = Scheduling(flush=queue_at_least(100), patience=0.01)
    with scheduler_over(2, scheduling=rule) as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0
    with scheduler_over(2, scheduling=rule, replay=ScheduleRecord()) as scheduler, placed(Place(key="unknown")):
        assert scheduler.submit(int).result(PATIENCE) == 0


def test_a_hold_is_woken_by_the_clock():
    class Holding(FixedLimit):
        holds = 0.01

        def hold(self):
            now, self.holds = self.holds, 0.0
            return now

    with scheduler_over(2, limit=Holding(2)) as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0


def test_a_recorded_schedule_is_the_same_with_1_and_8_workers(tmp_path):
    path = tmp_path / "schedule.jsonl"

    def run(workers, **kwargs):
        log = tmp_path / f"{workers}.jsonl"
        gate = threading.Event()
        with scheduler_over(workers, record=log, **kwargs) as scheduler:
            futures = []
            for number in range(40):
                lane = ("rollout", "reflection", "validation")[number % 3]
                with placed(Place(lane=lane, key=f"{lane}/{number}", prefix=str(number % 5))):
                    futures.append(scheduler.submit(gate.wait, PATIENCE))
            gate.set()
            for future in futures:
                future.result(PATIENCE)
        return log

    run(3).rename(path)
    for workers in (1, 8):
        assert ScheduleRecord.read(run(workers, replay=path)).keys() == ScheduleRecord.read(path).keys()


def test_nothing_of_a_task_outlives_it_but_its_result():
    class Load:
        def __call__(self):
            return 7

    with scheduler_over(2, scheduling=Scheduling(flush=waited(0.0))) as scheduler:
        load = Load()
        left = weakref.ref(load)
        future = scheduler.submit(load)
        assert future.result(PATIENCE) == 7
        assert scheduler.submit(int).result(PATIENCE) == 0
        del load
        scheduler.close()
        gc.collect()
        assert left() is None
        assert future.result() == 7


def test_close_waits_for_what_runs_and_cancels_what_waits():
    gate, running = threading.Event(), threading.Event()

    def block():
        running.set()
        assert gate.wait(PATIENCE)
        return "ended"

    scheduler = Scheduler(Threads().start(1))
    first, second = scheduler.submit(block), scheduler.submit(int)
    second.add_done_callback(lambda _: gate.set())
    assert running.wait(PATIENCE)
    scheduler.close()
    assert first.result() == "ended"
    assert second.cancelled()


def test_a_session_of_other_processes_is_given_its_own_rollouts():
    class Elsewhere:
        workers = 2

        def __init__(self):
            self.inner = Threads().start(2)

        def run_rollout(self, *args):
            return "there", args

        def submit(self, task, /, *args):
            return self.inner.submit(task, *args)

        def close(self):
            self.inner.close()

    scheduler = Scheduler(Elsewhere())
    try:
        assert scheduler.submit(run_rollout, 1, 2).result(PATIENCE) == ("there", (1, 2))
        assert scheduler.run_rollout(3) == ("there", (3,))
    finally:
        scheduler.close()


def test_a_refused_request_within_a_task_reaches_the_limit():
    class Heard(FixedLimit):
        said: Future = Future()

        def rejected(self, retry_after):
            self.said.set_result(retry_after)

    limit = Heard(2)
    with scheduler_over(2, limit=limit) as scheduler:
        scheduler.submit(tell_pressure, 1.5).result(PATIENCE)
        assert limit.said.result(PATIENCE) == 1.5
