"""The scheduler over a session that runs when it is told to."""

from __future__ import annotations

import contextvars
import logging
import threading
from concurrent.futures import CancelledError, as_completed, wait

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from combee_dspy.events import ScheduleDecided
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.rollouts import current_session
from combee_dspy.rollouts.scheduling import (
    LANES,
    FixedLimit,
    FlushRule,
    Place,
    Released,
    Scheduler,
    ScheduleRecord,
    Scheduling,
    current_place,
    placed,
    queue_at_least,
    variance_below,
    waited,
)
from combee_dspy.rollouts.scheduling._gate import GuardedRule

NO_SHARES = Scheduling(shares={})


def put(scheduler, lane, name, log, key=""):
    with placed(Place(lane=lane, key=key)):
        return scheduler.submit(log.append, name)


def counts(scheduler, lane="rollout"):
    return scheduler.account().lanes[lane]


class Limit:
    """A limit that a test moves, and that writes down what it hears."""

    def __init__(self, slots=1):
        self.slots, self.wait, self.heard = slots, 0.0, []

    def current(self):
        return self.slots

    def hold(self):
        return self.wait

    def started(self, lane):
        self.heard.append(("started", lane))

    def finished(self, lane, seconds, outcome):
        self.heard.append(("finished", lane, seconds, outcome))

    def rejected(self, retry_after):
        self.heard.append(("rejected", retry_after))


def test_the_most_urgent_goes_next_whenever_it_arrived(by_hand):
    inner, log = by_hand(8), []
    scheduler = Scheduler(inner, NO_SHARES, limit=FixedLimit(1))
    put(scheduler, "rollout", "first", log)
    for lane in reversed(LANES):
        put(scheduler, lane, lane, log)
    inner.run_all()
    assert log == ["first", *LANES]
    assert inner.most == 1


def test_an_order_of_ones_own(by_hand):
    inner, log = by_hand(1), []
    scheduler = Scheduler(inner, Scheduling(order=("late", "rollout"), shares={}))
    for lane in ("rollout", "rollout", "late"):
        put(scheduler, lane, lane, log)
    inner.run_all()
    assert log == ["rollout", "late", "rollout"]
    with pytest.raises(ArgumentValueError, match="validation"):
        put(scheduler, "validation", "", log)


@given(slots=st.integers(1, 5), lanes=st.lists(st.sampled_from(LANES), max_size=30), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_never_more_in_flight_than_allowed_and_nothing_left_behind(by_hand, slots, lanes, data):
    inner, log = by_hand(5), []
    scheduler = Scheduler(inner, limit=FixedLimit(slots))
    futures = [put(scheduler, lane, number, log) for number, lane in enumerate(lanes)]
    cancelled = set()
    while inner.held:
        assert sum(not one.done() for one, *_ in inner.held) <= slots
        if data.draw(st.booleans()) and len(cancelled) < len(futures):
            index = data.draw(st.integers(0, len(futures) - 1))
            if futures[index].cancel():
                cancelled.add(index)
        if inner.held:
            inner.run(data.draw(st.integers(0, len(inner.held) - 1)))
    assert sorted(log) == sorted(set(range(len(lanes))) - cancelled)
    assert all(future.done() for future in futures)
    for lane in LANES:
        of = counts(scheduler, lane)
        assert (of.waiting, of.in_flight) == (0, 0)
        assert of.submitted == of.finished + of.cancelled == lanes.count(lane)


def test_a_callbacks_task_competes_for_the_slot_that_comes_free(by_hand):
    inner, log = by_hand(1), []
    scheduler = Scheduler(inner, NO_SHARES)
    first = put(scheduler, "rollout", "a", log)
    put(scheduler, "rollout", "b", log)
    first.add_done_callback(lambda _: put(scheduler, "reflection", "urgent", log))
    inner.run_all()
    assert log == ["a", "urgent", "b"]


def test_a_task_sees_its_session_its_place_and_the_callers_context(by_hand):
    variable = contextvars.ContextVar("variable", default="default")
    inner = by_hand(1)
    scheduler = Scheduler(inner)
    variable.set("the caller's")
    with placed(Place(lane="validation", key="k")):
        future = scheduler.submit(lambda: (current_session(), current_place().within("x"), variable.get()))
    variable.set("another")
    inner.run()
    assert future.result() == (scheduler, Place(lane="validation", key="k/x"), "the caller's")
    assert current_place() == Place()


def test_a_task_that_waited_sees_its_own_callers_context_whoever_sends_it(by_hand):
    variable = contextvars.ContextVar("variable", default="default")
    inner = by_hand(1)
    scheduler = Scheduler(inner)
    scheduler.submit(int)
    variable.set("the caller's")
    future = scheduler.submit(variable.get)
    variable.set("another")
    inner.run_all()
    assert future.result() == "the caller's"


def test_a_cancelled_task_gives_its_slot_back_at_once(by_hand):
    inner = by_hand(1)
    scheduler = Scheduler(inner)
    first, second = scheduler.submit(int), scheduler.submit(int)
    assert first.cancel()
    inner.run(1)
    assert second.result() == 0


def test_a_wait_that_ends_by_itself_does_no_work(by_hand):
    inner, log = by_hand(1), []
    scheduler = Scheduler(inner)

    def impatient():
        future = scheduler.submit(log.append, 1)
        with pytest.raises(TimeoutError):
            future.result(timeout=0)
        return list(log)

    future = scheduler.submit(impatient)
    inner.run_all()
    assert future.result() == []
    assert log == [1]


def test_exceptions_travel_and_are_counted(by_hand):
    inner, limit = by_hand(1), Limit()
    scheduler = Scheduler(inner, limit=limit)
    future = scheduler.submit(lambda: 1 / 0)
    inner.run()
    assert isinstance(future.exception(), ZeroDivisionError)
    assert counts(scheduler).failed == 1
    assert limit.heard[-1][3] == "failed"


def test_a_session_that_takes_no_task_gives_the_slot_back(by_hand):
    inner, limit = by_hand(1), Limit()
    scheduler = Scheduler(inner, limit=limit)
    inner.refuse = ValueError("full")
    refused = scheduler.submit(print)
    inner.refuse = None
    log = []
    put(scheduler, "rollout", "next", log)
    inner.run_all()
    assert str(refused.exception()) == "full"
    assert log == ["next"]
    assert counts(scheduler).in_flight == 0


def test_those_who_wait_for_many_hear_of_a_cancelled_one(by_hand):
    inner = by_hand(1)
    scheduler = Scheduler(inner)
    running, waiting = scheduler.submit(int), scheduler.submit(int)
    assert waiting.cancel()
    assert waiting.cancel()
    inner.run_all()
    assert wait([running, waiting]).not_done == set()
    assert {*as_completed([running, waiting])} == {running, waiting}
    with pytest.raises(CancelledError):
        waiting.result()
    assert counts(scheduler).cancelled == 1


def test_a_task_that_was_dispatched_and_has_not_begun_can_be_cancelled(by_hand):
    inner, log = by_hand(1), []
    scheduler = Scheduler(inner)
    first = put(scheduler, "rollout", "a", log)
    put(scheduler, "rollout", "b", log)
    assert first.cancel()
    inner.run_all()
    assert log == ["b"]
    assert (counts(scheduler).cancelled, counts(scheduler).finished) == (1, 1)


def test_a_worker_that_waits_for_a_task_that_waits_does_it_itself(by_hand):
    inner = by_hand(1)
    scheduler = Scheduler(inner)

    def deep(level):
        if level == 0:
            return [current_session() is scheduler]
        with placed(Place(lane="reflection", key=str(level))):
            return [*scheduler.submit(deep, level - 1).result(), level]

    future = scheduler.submit(deep, 5)
    inner.run()
    assert future.result() == [True, 1, 2, 3, 4, 5]
    assert counts(scheduler, "reflection").helped == 5
    assert counts(scheduler, "reflection").finished == 5
    assert counts(scheduler, "reflection").in_flight == 0

    def failing():
        return scheduler.submit(lambda: 1 / 0).exception()

    failed = scheduler.submit(failing)
    inner.run()
    assert isinstance(failed.result(), ZeroDivisionError)


def test_a_limit_moves_the_number_in_flight_up_and_down(by_hand):
    inner, limit, log = by_hand(4), Limit(2), []
    scheduler = Scheduler(inner, limit=limit)
    for name in range(8):
        put(scheduler, "rollout", name, log)
    assert len(inner.held) == 2
    limit.slots = 99
    scheduler.look()
    assert len(inner.held) == scheduler.slots == 4
    limit.slots = 0
    inner.run()
    inner.run()
    assert len(inner.held) == 2
    inner.run_all()
    assert log == list(range(8))


def test_nothing_goes_while_the_service_asks_to_wait(by_hand, clock):
    inner, limit, log = by_hand(4), Limit(4), []
    scheduler = Scheduler(inner, limit=limit, clock=clock)
    limit.wait = 30.0
    put(scheduler, "rollout", "a", log)
    assert not inner.held
    limit.wait = 0.0
    scheduler.look()
    inner.run_all()
    assert log == ["a"]
    scheduler.pressed(2.5)
    assert limit.heard == [("started", "rollout"), ("finished", "rollout", 0.0, "ok"), ("rejected", 2.5)]


def test_a_limit_that_raises_stops_no_run(by_hand, caplog):
    class Broken(Limit):
        def current(self):
            raise ValueError("broken")

    inner, log = by_hand(3), []
    with caplog.at_level(logging.WARNING):
        scheduler = Scheduler(inner, limit=Broken())
        for name in range(9):
            put(scheduler, "rollout", name, log)
        inner.run_all()
    assert log == list(range(9))
    assert len(caplog.records) == 1


def test_a_flush_rule_holds_tasks_until_enough_wait_or_the_oldest_has_waited(by_hand, clock):
    inner, log = by_hand(10), []
    scheduler = Scheduler(inner, Scheduling(flush=queue_at_least(3) | waited(0.2)), clock=clock)
    put(scheduler, "rollout", 1, log)
    put(scheduler, "rollout", 2, log)
    assert not inner.held
    put(scheduler, "rollout", 3, log)
    assert len(inner.held) == 3
    put(scheduler, "rollout", 4, log)
    clock.now += 0.1
    scheduler.look()
    assert len(inner.held) == 3
    clock.now += 0.1
    scheduler.look()
    assert len(inner.held) == 4


def test_what_a_flush_released_goes_as_slots_come_free_without_asking_again(by_hand, clock):
    inner, log = by_hand(2), []
    scheduler = Scheduler(inner, Scheduling(flush=queue_at_least(6)), clock=clock)
    for name in range(6):
        put(scheduler, "rollout", name, log)
    inner.run_all()
    assert log == list(range(6))


def test_the_target_is_what_the_service_takes_at_once(by_hand, clock):
    inner, limit, log = by_hand(8), Limit(4), []
    scheduler = Scheduler(inner, Scheduling(flush=queue_at_least("target")), limit=limit, clock=clock)
    for name in range(3):
        put(scheduler, "rollout", name, log)
    assert not inner.held
    put(scheduler, "rollout", 3, log)
    assert len(inner.held) == 4


def test_a_rule_that_would_wait_for_ever_gives_way_when_nothing_else_can_happen(by_hand, clock):
    inner, log = by_hand(8), []
    scheduler = Scheduler(inner, Scheduling(flush=queue_at_least(64), patience=5.0), clock=clock)
    put(scheduler, "rollout", 1, log)
    clock.now += 4.0
    put(scheduler, "rollout", 2, log)
    clock.now += 4.0
    scheduler.look()
    assert not inner.held
    clock.now += 1.0
    scheduler.look()
    assert len(inner.held) == 2


def test_patience_does_not_shorten_what_a_rule_says_of_the_clock(by_hand, clock):
    inner, log = by_hand(8), []
    scheduler = Scheduler(inner, Scheduling(flush=waited(30.0), patience=1.0), clock=clock)
    put(scheduler, "rollout", 1, log)
    clock.now += 29.0
    scheduler.look()
    assert not inner.held
    # A thread that was asked to look again at a time that is over would never rest.
    assert scheduler._dispatcher._core.take(clock.now).ring_at == clock.now + 1.0
    scheduler.close()


def test_a_batch_with_a_token_bound_leaves_what_does_not_fit_for_the_next(by_hand, clock):
    inner, log = by_hand(10), []
    rule = Scheduling(flush=queue_at_least(4) | waited(1.0), tokens=100)
    scheduler = Scheduler(inner, rule, clock=clock)
    for tokens in (40, 900, 40, 40):
        with placed(Place(tokens=tokens)):
            scheduler.submit(log.append, tokens)
    inner.run_all()
    assert log == [40, 40]
    clock.now += 1.0
    scheduler.look()
    inner.run_all()
    assert sorted(log) == [40, 40, 40, 900]


def test_variance_of_the_scores_of_rollouts_can_release(by_hand, clock):
    inner = by_hand(16)
    scheduler = Scheduler(inner, Scheduling(flush=queue_at_least(8) | variance_below(0.01)), clock=clock)
    for _ in range(8):
        scheduler.submit(lambda: Rollout("id", None, None, (), 0.5))
    inner.run_all()
    scheduler.submit(int)
    assert len(inner.held) == 1


def test_a_rule_that_raises_stops_no_run(by_hand, caplog):
    class Broken(FlushRule):
        def check(self, view):
            raise ValueError("broken")

    inner, log = by_hand(3), []
    with caplog.at_level(logging.WARNING):
        scheduler = Scheduler(inner, Scheduling(flush=Broken()))
        for name in range(5):
            put(scheduler, "rollout", name, log)
        inner.run_all()
    assert log == list(range(5))
    assert len(caplog.records) == 1


def test_scores_may_come_while_a_rule_is_asked():
    rule = GuardedRule(variance_below(1.0))

    class Interrupted(float):
        """A score that is told in the middle of the sum over all of them."""

        def __radd__(self, other):
            worker = threading.Thread(target=rule.scored, args=(0.5,))
            worker.start()
            worker.join(10)
            return float(self) + other

    for _ in range(8):
        rule.scored(Interrupted(0.5))
    reason, _ = rule.decide(1, 0.0, 1, 1, stalled=False)
    assert "variance" in reason
    assert not rule.at_once


def test_what_interrupts_the_thread_that_sends_holds_no_others_task_back(by_hand):
    class Interrupted(type(by_hand(1))):
        def submit(self, task, /, *args):
            if args[0].args == ("first",):
                # Another thread comes by while this one sends.
                other = threading.Thread(target=put, args=(scheduler, "rollout", "second", log))
                other.start()
                other.join(10)
                raise KeyboardInterrupt
            return super().submit(task, *args)

    inner, log = Interrupted(2), []
    scheduler = Scheduler(inner)
    with pytest.raises(KeyboardInterrupt):
        put(scheduler, "rollout", "first", log)
    inner.run_all()
    assert log == ["second"]
    scheduler.close()


def test_drain_lets_speculation_wait(by_hand):
    inner, log = by_hand(1), []
    scheduler = Scheduler(inner)
    put(scheduler, "rollout", "a", log)
    put(scheduler, "speculative", "s", log)
    put(scheduler, "reflection", "r", log)
    inner.run_all()
    assert log == ["a", "r", "s"]


def test_drop_cancels_waiting_speculation_when_something_more_urgent_finds_no_slot(by_hand):
    inner, log, events = by_hand(2), [], []
    scheduler = Scheduler(inner, Scheduling(preempt="drop"), emit=events.append)
    put(scheduler, "rollout", "a", log)
    running = put(scheduler, "speculative", "running", log)
    dropped = [put(scheduler, "speculative", "s", log) for _ in range(3)]
    assert not any(future.cancelled() for future in dropped)
    put(scheduler, "rollout", "b", log)
    inner.run_all()
    scheduler.close()
    assert all(future.cancelled() for future in dropped)
    assert log == ["a", "running", "b"]
    assert running.result() is None
    of = counts(scheduler, "speculative")
    assert (of.submitted, of.dropped, of.finished, of.cancelled) == (4, 3, 1, 0)
    (told,) = [event.values for event in events if event.decision == "preemption"]
    assert told == {"policy": "drop", "for": "rollout", "tasks": 3}


def test_rollback_takes_the_latest_of_the_least_urgent_back_and_queues_it_again(by_hand):
    inner, log = by_hand(3), []
    scheduler = Scheduler(inner, Scheduling(preempt="rollback", shares={}))
    put(scheduler, "validation", "v1", log)
    back = put(scheduler, "validation", "v2", log)
    put(scheduler, "rollout", "r", log)
    put(scheduler, "validation", "v3", log)
    put(scheduler, "reflection", "urgent", log)
    assert [one for one, *_ in inner.held if not one.cancelled()]
    inner.run_all()
    assert log == ["v1", "r", "urgent", "v2", "v3"]
    assert back.done()
    of = counts(scheduler, "validation")
    assert (of.rolled_back, of.started, of.finished, of.submitted) == (1, 4, 3, 3)


def test_rollback_leaves_alone_what_has_begun(by_hand):
    inner, log = by_hand(1), []
    scheduler = Scheduler(inner, Scheduling(preempt="rollback"))

    def begun():
        put(scheduler, "reflection", "urgent", log)
        log.append("begun")

    scheduler.submit(begun)
    inner.run_all()
    assert log == ["begun", "urgent"]
    assert counts(scheduler).rolled_back == 0


def test_a_task_that_is_wanted_now_moves_to_another_lane_while_it_waits(by_hand):
    inner, log = by_hand(1), []
    scheduler = Scheduler(inner, Scheduling(preempt="drop", shares={}))
    running = put(scheduler, "rollout", "a", log)
    ahead = put(scheduler, "speculative", "ahead", log)
    put(scheduler, "validation", "v", log)
    assert ahead.cancelled()
    wanted = put(scheduler, "speculative", "wanted", log)
    assert scheduler.move(wanted, Place(lane="reflection"))
    assert not scheduler.move(running, Place(lane="reflection"))
    put(scheduler, "rollout", "b", log)
    inner.run_all()
    assert log == ["a", "wanted", "b", "v"]
    assert not scheduler.move(wanted, Place())
    assert counts(scheduler, "speculative").submitted == counts(scheduler, "speculative").dropped == 1
    assert counts(scheduler, "reflection").submitted == counts(scheduler, "reflection").finished == 1
    with pytest.raises(ArgumentValueError):
        scheduler.move(wanted, Place(lane="nowhere"))


def test_a_task_that_moves_has_waited_since_it_was_submitted(by_hand, clock):
    inner = by_hand(1)
    scheduler = Scheduler(inner, clock=clock)
    scheduler.submit(int)
    waiting = scheduler.submit(int)
    clock.now += 5.0
    scheduler.submit(int).cancel()
    assert scheduler.move(waiting, Place(lane="reflection"))
    inner.run_all()
    assert counts(scheduler, "reflection").waited_seconds == 5.0


def test_a_task_that_moves_keeps_its_turn_in_a_replay(by_hand):
    record = ScheduleRecord((Released(1, "", 1, 1, (("rollout", "a"), ("rollout", "b"))),))
    inner, log = by_hand(2), []
    scheduler = Scheduler(inner, replay=record)
    future = put(scheduler, "speculative", "b", log, "b")
    assert scheduler.move(future, Place(lane="reflection", key="other"))
    put(scheduler, "rollout", "a", log, "a")
    inner.run_all()
    assert log == ["a", "b"]


def test_the_account_adds_up_busy_time_waits_and_use(by_hand, clock):
    inner, limit = by_hand(4), Limit(2)
    scheduler = Scheduler(inner, limit=limit, clock=clock)

    def work():
        clock.now += 3.0

    for _ in range(3):
        scheduler.submit(work)
    inner.run_all()
    clock.now += 1.0
    account = scheduler.account()
    assert account.busy_seconds == 9.0
    assert account.elapsed == 10.0
    assert account.slot_seconds == 20.0
    assert account.utilisation == pytest.approx(0.45)
    assert account.lanes["rollout"].waited_seconds == 3.0
    scheduler.close()
    clock.now += 100.0
    assert scheduler.account() == account


def test_decisions_are_told_one_event_for_all_refills(by_hand):
    inner, events, log = by_hand(4), [], []
    limit = Limit(4)
    scheduler = Scheduler(inner, limit=limit, emit=events.append)
    with placed(Place(iteration=3)):
        for name in range(20):
            scheduler.submit(log.append, name)
    inner.run_all()
    limit.slots = 2
    put(scheduler, "validation", 20, log)
    inner.run_all()
    scheduler.close()
    assert all(isinstance(event, ScheduleDecided) for event in events)
    flushes = [event for event in events if event.decision == "flush"]
    assert sum(event.values["tasks"] for event in flushes) == 21
    assert flushes[0].iteration == 3
    assert flushes[0].values["reason"] == "a slot is free"
    assert len(flushes) <= 3
    (changed,) = [event.values for event in events if event.decision == "concurrency"]
    assert (changed["before"], changed["limit"]) == (4, 2)
    assert len({event.schedule_id for event in events}) == len(events)


def test_what_a_hook_raises_to_end_the_run_is_raised_in_the_runs_thread(by_hand, caplog):
    class Spent(BaseException):
        pass

    def emit(event):
        raise Spent

    scheduler = Scheduler(by_hand(1), emit=emit)
    scheduler.submit(int)
    with pytest.raises(Spent):
        scheduler.close()
    scheduler.close()


def test_a_hook_that_fails_costs_nothing_but_its_event(by_hand, caplog):
    def emit(event):
        raise ValueError("hook")

    inner = by_hand(1)
    scheduler = Scheduler(inner, emit=emit)
    future = scheduler.submit(int)
    inner.run_all()
    scheduler.close()
    assert future.result() == 0


def test_a_recorded_schedule_is_followed_whatever_the_workers_and_the_order_of_submission(by_hand, tmp_path, clock):
    path = tmp_path / "schedule.jsonl"
    inner, log = by_hand(2), []
    scheduler = Scheduler(inner, NO_SHARES, record=path)
    tasks = [("rollout", "a"), ("rollout", "b"), ("validation", "v"), ("rollout", "c"), ("reflection", "r")]
    for lane, key in tasks:
        put(scheduler, lane, key, log, key)
    inner.run_all()
    scheduler.close()
    assert log == ["a", "b", "r", "c", "v"]
    assert list(ScheduleRecord.read(path).keys()) == log
    for workers in (1, 4):
        again, repeated = by_hand(workers), []
        replayed = Scheduler(again, NO_SHARES, replay=path, clock=clock)
        for lane, key in reversed(tasks):
            put(replayed, lane, key, repeated, key)
        again.run_all()
        replayed.close()
        assert repeated == log


def test_a_replay_waits_for_what_may_still_come_and_then_goes_on(by_hand, clock):
    inner, log = by_hand(4), []
    record = ScheduleRecord((Released(1, "", 1, 1, (("rollout", "a"), ("rollout", "b"), ("rollout", "c"))),))
    scheduler = Scheduler(inner, Scheduling(patience=2.0), replay=record, clock=clock)
    put(scheduler, "rollout", "c", log, "c")
    put(scheduler, "rollout", "x", log, "x")
    assert not inner.held
    put(scheduler, "rollout", "a", log, "a")
    inner.run_all()
    assert log == ["a"]
    clock.now += 2.0
    scheduler.look()
    inner.run_all()
    assert log == ["a", "c", "x"]
    put(scheduler, "rollout", "b", log, "b")
    inner.run_all()
    assert log == ["a", "c", "x", "b"]


def test_a_record_that_cannot_be_read_is_refused_before_anything_runs(by_hand, tmp_path):
    path = tmp_path / "schedule.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ArgumentValueError, match="replay"):
        Scheduler(by_hand(1), replay=path)


@pytest.mark.parametrize(
    ("given_settings", "error"),
    [
        (Scheduling(order=()), ArgumentValueError),
        (Scheduling(order=("a", "a")), ArgumentValueError),
        (Scheduling(shares={"nobody": 0.1}), ArgumentValueError),
        (Scheduling(shares={"rollout": 0.7, "validation": 0.7}), ArgumentValueError),
        (Scheduling(shares={"rollout": -0.1}), ArgumentValueError),
        (Scheduling(flush="waited"), ArgumentTypeError),
        (Scheduling(preempt="kill"), ArgumentValueError),
        (Scheduling(window=0), ArgumentValueError),
        (Scheduling(tokens=0), ArgumentValueError),
        (Scheduling(patience=-1.0), ArgumentValueError),
    ],
)
def test_settings_out_of_their_range_are_refused(by_hand, given_settings, error):
    with pytest.raises(error):
        Scheduler(by_hand(1), given_settings)
    with pytest.raises(ArgumentValueError):
        FixedLimit(0)


def test_close_cancels_what_waits_twice_without_harm(by_hand):
    inner = by_hand(1)
    scheduler = Scheduler(inner)
    futures = [scheduler.submit(int) for _ in range(5)]
    scheduler.close()
    scheduler.close()
    assert all(future.cancelled() for future in futures)
    assert inner.closed == 2
    assert counts(scheduler).cancelled == 5
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.submit(int)


def test_close_leaves_nothing_open_when_the_inner_session_cannot_close(by_hand):
    inner = by_hand(1)

    def close():
        raise OSError("no")

    inner.close = close
    scheduler = Scheduler(inner)
    futures = [scheduler.submit(int) for _ in range(3)]
    with pytest.raises(OSError, match="no"):
        scheduler.close()
    assert all(future.cancelled() for future in futures)
