"""The adaptive limit against simulated services, by a clock of its own."""

from __future__ import annotations

import heapq
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts import AdaptiveLimit, growth_allowed
from combee_dspy.rollouts import _adaptive_core as core


@dataclass
class World:
    """A service and a client with more to do than the limit lets through, event by event.

    Latencies are lognormal. A rejected call is repeated after ``retry_after``.
    """

    slots: Callable[[float], int]
    tasks: int = 2000
    rejects: bool = True
    start: int = 8
    ceiling: int = 512
    retry_after: float | None = 1.0
    chance: float = 0.0
    median: Callable[[float, str], float] = lambda now, lane: 5.0
    sigma: float = 0.35
    lane: Callable[[int], str] = lambda number: "rollout"
    may_grow: bool = True
    seed: int = 0
    now: float = 0.0
    rejected: int = 0
    busy: int = 0
    changes: list[core.Change] = field(default_factory=list)
    trace: list[tuple[float, int, int]] = field(default_factory=list)

    def run(self) -> World:
        self.random = random.Random(self.seed)
        self.limit = AdaptiveLimit(
            self.start, self.ceiling, clock=lambda: self.now, may_grow=lambda: self.may_grow, on_change=self.changed
        )
        self.events: list[tuple[float, int, str, int]] = []
        self.queue: list[int] = []
        self.born: dict[int, float] = {}
        self.serial = self.begun = self.in_flight = self.peak = 0
        self.dispatch()
        while self.events:
            self.now, _, kind, task = heapq.heappop(self.events)
            if kind == "end":
                self.busy -= 1
                while self.queue and self.busy < self.slots(self.now):
                    self.serve(self.queue.pop(0))
                self.in_flight -= 1
                self.limit.finished(self.lane(task), self.now - self.born.pop(task), "ok")
            elif kind == "call":
                self.call(task)
            self.dispatch()
            self.trace.append((self.now, self.busy, self.in_flight))
        return self

    def changed(self, old: int, new: int, reason: str) -> None:
        self.changes.append(core.Change(old, new, reason))

    def later(self, seconds: float, kind: str, task: int = 0) -> None:
        self.serial += 1
        heapq.heappush(self.events, (self.now + seconds, self.serial, kind, task))

    def dispatch(self) -> None:
        while self.begun < self.tasks and self.in_flight < self.limit.current() and not self.limit.hold():
            self.begun += 1
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
            self.born[self.begun] = self.now
            self.limit.started(self.lane(self.begun))
            self.later(0.05, "call", self.begun)
        if self.limit.hold():
            self.later(self.limit.hold() + 1e-9, "wake")

    def call(self, task: int) -> None:
        full = self.busy >= self.slots(self.now)
        if (full and self.rejects) or self.random.random() < self.chance:
            self.rejected += 1
            # The thread that runs a task is what tells it apart; here it is the task's number.
            self.limit._observe(lambda now: core.Rejected(now, task, self.retry_after))
            self.later(self.retry_after or 1.0, "call", task)
        elif full:
            self.queue.append(task)
        else:
            self.serve(task)

    def serve(self, task: int) -> None:
        self.busy += 1
        median = self.median(self.now, self.lane(task))
        self.later(median * math.exp(self.random.gauss(0, self.sigma)), "end", task)

    def mean(self, first: float, last: float) -> float:
        """Mean in flight between two shares of the run's time."""
        area = span = 0.0
        for (begin, _, count), (end, _, _) in zip(self.trace, self.trace[1:], strict=False):
            if first * self.now <= begin and end <= last * self.now:
                area, span = area + count * (end - begin), span + end - begin
        return area / span


@pytest.mark.parametrize("slots", [5, 37, 150])
@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_capacity_of_a_service_that_rejects_is_found_within_a_tenth(slots, retry_after):
    world = World(lambda now: slots, retry_after=retry_after).run()

    assert world.mean(0.3, 0.9) == pytest.approx(slots, rel=0.1)
    assert world.rejected < 0.05 * world.tasks
    assert not world.limit.state.in_flight


def test_capacity_that_halves_and_one_that_doubles_are_found_again():
    halved = World(lambda now: 37 if now < 150 else 18).run()
    doubled = World(lambda now: 37 if now < 150 else 80, tasks=5000).run()

    assert halved.mean(0.5, 0.9) == pytest.approx(18, rel=0.1)
    assert doubled.mean(0.7, 0.9) == pytest.approx(80, rel=0.1)


def test_given_capacity_is_used_at_once_and_only_backed_off_from():
    right = World(lambda now: 64, start=64, ceiling=64).run()
    wrong = World(lambda now: 37, start=64, ceiling=64).run()

    assert right.changes == []
    assert wrong.peak == 64
    assert wrong.mean(0.3, 0.9) == pytest.approx(37, rel=0.1)


def test_burst_that_is_rejected_lowers_the_limit_by_the_tasks_rejected_and_no_further_for_their_repetitions():
    state = core.begin(64, 64)
    for _ in range(64):
        state = core.step(state, core.Started(0.0))
    for _ in range(5):
        for who in range(27):
            state = core.step(state, core.Rejected(1.0, who))

    assert state.limit == 37


def test_rejections_of_one_round_trip_at_most_halve_the_limit():
    state = core.begin(64, 64)
    for _ in range(64):
        state = core.step(state, core.Started(0.0))
    for who in range(60):
        state = core.step(state, core.Rejected(1.0, who))

    assert state.limit == 32


def test_chance_rejections_do_not_starve_a_run():
    world = World(lambda now: 37, chance=0.01).run()

    assert world.mean(0.3, 0.9) > 0.8 * 37


def test_dispatch_is_held_until_the_latest_retry_after():
    limit = AdaptiveLimit(8, 8, clock=lambda: 100.0)
    limit.rejected(4.0)
    assert limit.hold() == pytest.approx(4.0)
    limit.rejected(2.0)
    assert limit.hold() == pytest.approx(4.0)


@pytest.mark.parametrize("asked", [1e9, math.inf, math.nan, -5.0, 0.0, None])
def test_absurd_retry_after_holds_for_two_minutes_at_most(asked):
    limit = AdaptiveLimit(8, 8, clock=lambda: 100.0)
    limit.rejected(asked)

    assert 0.0 <= limit.hold() <= 120.0


@pytest.mark.parametrize("slots", [37, 18])
def test_service_that_queues_is_backed_off_from(slots):
    world = World(lambda now: slots, rejects=False).run()

    assert world.mean(0.4, 0.9) < 1.4 * slots
    # And is not left idle.
    assert world.now < 1.25 * world.tasks / slots * 5.0 * math.exp(0.35**2 / 2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("start", "ceiling"), [(8, 64), (64, 64), (8, 8), (8, 256)])
def test_service_that_does_not_queue_is_never_backed_off_from(start, ceiling, seed):
    world = World(lambda now: 10**9, start=start, ceiling=ceiling, seed=seed).run()

    assert all(change.new > change.old for change in world.changes)
    assert world.limit.current() == ceiling


def test_tasks_that_become_longer_are_told_from_a_queue():
    world = World(lambda now: 10**9, ceiling=64, tasks=4000, median=lambda now, lane: 5.0 if now < 100 else 10.0).run()

    assert "not-queueing" in {change.reason for change in world.changes}
    assert world.limit.current() == 64
    assert world.mean(0.6, 0.9) == pytest.approx(64, rel=0.01)


def test_lanes_are_compared_with_themselves():
    world = World(
        lambda now: 10**9,
        ceiling=64,
        # Rollouts first, then ever more of what takes ten times as long.
        lane=lambda number: "reflection" if number > 600 and number % 2 else "rollout",
        median=lambda now, lane: {"rollout": 2.0, "reflection": 20.0}[lane],
    ).run()

    assert all(change.new > change.old for change in world.changes)


def test_answers_from_a_cache_neither_raise_nor_lower_the_limit():
    limit = AdaptiveLimit(8, 512, clock=iter(range(10**6)).__next__)
    for _ in range(8):
        limit.started("rollout")
    for number in range(100):
        limit.finished("rollout", 5.0 + number % 3, "ok")
        limit.started("rollout")
    before = limit.current()
    for _ in range(2000):
        limit.finished("rollout", 0.001, "ok")
        limit.started("rollout")

    assert limit.current() == before


def test_limit_grows_only_while_it_is_reached_and_growth_is_allowed():
    few = AdaptiveLimit(8, 64)
    for _ in range(500):
        few.started("rollout")
        few.finished("rollout", 5.0, "ok")
    unwanted = World(lambda now: 10**9, may_grow=False, tasks=500).run()

    assert few.current() == 8
    assert unwanted.changes == []


def test_cancelled_tasks_say_nothing():
    limit = AdaptiveLimit(8, 64)
    for _ in range(300):
        for _ in range(8):
            limit.started("speculative")
        for _ in range(8):
            limit.finished("speculative", 0.0, "cancelled")

    assert limit.current() == 8
    assert limit.state == core.begin(8, 64)


def test_failures_do_not_raise_the_limit():
    limit = AdaptiveLimit(8, 64)
    for _ in range(8):
        limit.started("rollout")
    for _ in range(100):
        limit.finished("rollout", 0.01, "failed")
        limit.started("rollout")

    assert limit.current() == 8


def test_every_change_is_told_in_order_and_none_without_a_change():
    told: list[tuple[int, int, str]] = []
    world = World(lambda now: 37)
    world.changed = lambda old, new, reason: told.append((old, new, reason))  # type: ignore[method-assign]
    world.run()

    assert told[0] == (8, 9, "filled")
    assert all(old != new for old, new, _ in told)
    assert [new for _, new, _ in told[:-1]] == [old for old, _, _ in told[1:]]
    assert told[-1][1] == world.limit.current()
    assert {reason for _, _, reason in told} >= {"filled", "rejected", "probe"}


def test_threads_lose_no_task_and_repeated_rejections_of_one_thread_count_once():
    limit = AdaptiveLimit(64, 64)
    barrier = threading.Barrier(16)

    def work() -> None:
        for _ in range(4):
            limit.started("rollout")
        barrier.wait()
        for _ in range(3):
            limit.rejected(None)
        barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert limit.state.in_flight == 64
    assert limit.current() == 64 - 16
    assert limit.rejections == 48


@pytest.mark.parametrize("numbers", [(0, 8), (8, 4)])
def test_limits_that_make_no_sense_are_refused(numbers):
    with pytest.raises(ArgumentValueError):
        AdaptiveLimit(*numbers)


@given(st.data())
def test_invariants_hold_for_any_course(data):
    start = data.draw(st.integers(1, 40))
    ceiling = start + data.draw(st.integers(0, 60))
    state = core.begin(start, ceiling)
    now = 0.0
    kinds = st.sampled_from(["start", "start", "ok", "ok", "failed", "cancelled", "rejected"])
    for kind in data.draw(st.lists(kinds, max_size=300)):
        now += data.draw(st.sampled_from([0.0, 0.01, 1.0]))
        before = state
        if kind == "start":
            state = core.step(state, core.Started(now))
            assert state.limit == before.limit
        elif kind == "rejected":
            who = data.draw(st.sampled_from([None, 1, 2, 3]))
            wait = data.draw(st.sampled_from([None, 0.5, math.inf, math.nan, -1.0]))
            state = core.step(state, core.Rejected(now, who, wait))
            assert max(1, before.limit // 4) <= state.limit <= before.limit
            assert state.held_until <= max(before.held_until, now + 120.0)
        else:
            seconds = data.draw(st.sampled_from([0.0, 0.001, 1.0, 3.0]))
            state = core.step(state, core.Finished(now, "rollout", seconds, kind))
            assert kind != "cancelled" or state.limit == before.limit
        assert 1 <= state.limit <= ceiling
        assert state.in_flight >= 0
        assert (state.changes != before.changes) == (state.limit != before.limit)
        assert len(state.window) <= 512
        assert len(state.marks) <= 64


def test_growth_is_allowed_while_batches_fill_diversity_holds_and_validation_improves():
    assert growth_allowed()
    assert growth_allowed(utilisation=0.95, front_similarity=0.5, best_validation=[0.4, 0.5, 0.5, 0.5, 0.6])
    assert not growth_allowed(utilisation=0.5)
    assert not growth_allowed(front_similarity=0.95)
    assert not growth_allowed(best_validation=[0.5, 0.5, 0.5, 0.5])
    assert growth_allowed(best_validation=[0.5, 0.5, 0.5])
    with pytest.raises(ArgumentValueError):
        growth_allowed(patience=0)
