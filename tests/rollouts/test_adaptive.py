"""The adaptive limit against simulated services, by a clock of its own."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.rollouts import Adaptive
from combee_dspy.rollouts._limits import Limit


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
    lane: Callable[[int], str] = lambda number: "rollout"
    seed: int = 0
    make: Callable[[int, int], Limit] = Adaptive
    now: float = 0.0
    rejected: int = 0
    busy: int = 0
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    trace: list[tuple[float, int]] = field(default_factory=list)

    def run(self) -> World:
        self.random = random.Random(self.seed)
        self.limit = self.make(self.start, self.ceiling)
        self.limit.on_change = self.changed
        self.last = self.start
        self.events: list[tuple[float, int, str, int]] = []
        self.queue: list[int] = []
        self.flying: dict[int, object] = {}
        self.serial = self.dispatched = self.peak = 0
        self.dispatch()
        while self.events:
            self.now, _, kind, task = heapq.heappop(self.events)
            if kind == "end":
                self.busy -= 1
                while self.queue and self.busy < self.slots(self.now):
                    self.serve(self.queue.pop(0))
                self.limit.ended(self.flying.pop(task), "ok", self.now)
            elif kind == "call":
                self.call(task)
            self.dispatch()
            self.trace.append((self.now, len(self.flying)))
        return self

    def changed(self, limit: int, reason: str) -> None:
        self.changes.append((self.last, limit, reason))
        self.last = limit

    def later(self, seconds: float, kind: str, task: int = 0) -> None:
        self.serial += 1
        heapq.heappush(self.events, (self.now + seconds, self.serial, kind, task))

    def dispatch(self) -> None:
        held = self.limit.held_until > self.now
        while self.dispatched < self.tasks and len(self.flying) < self.limit.current and not held:
            self.dispatched += 1
            self.flying[self.dispatched] = self.limit.started(self.lane(self.dispatched), self.now)
            self.peak = max(self.peak, len(self.flying))
            self.later(0.05, "call", self.dispatched)
        if held:
            self.later(self.limit.held_until - self.now + 1e-9, "wake")

    def call(self, task: int) -> None:
        full = self.busy >= self.slots(self.now)
        if (full and self.rejects) or self.random.random() < self.chance:
            self.rejected += 1
            self.limit.rejected(self.retry_after, self.now, task)
            self.later(self.retry_after or 1.0, "call", task)
        elif full:
            self.queue.append(task)
        else:
            self.serve(task)

    def serve(self, task: int) -> None:
        self.busy += 1
        median = self.median(self.now, self.lane(task))
        self.later(median * math.exp(self.random.gauss(0, 0.35)), "end", task)

    def mean(self, first: float, last: float) -> float:
        """Mean in flight between two shares of the run's time."""
        area = span = 0.0
        for (begin, _), (end, count) in zip(self.trace, self.trace[1:], strict=False):
            if first * self.now <= begin and end <= last * self.now:
                area, span = area + count * (end - begin), span + end - begin
        return area / span

    def only_grew(self) -> bool:
        return all(new > old for old, new, _ in self.changes)


@pytest.mark.parametrize("slots", [5, 37, 150])
@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_capacity_of_a_service_that_rejects_is_found_within_a_tenth(slots, retry_after):
    world = World(lambda now: slots, retry_after=retry_after).run()

    assert world.mean(0.3, 0.9) == pytest.approx(slots, rel=0.1)
    assert world.rejected < 0.05 * world.tasks


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


def full(start: int) -> Adaptive:
    limit = Adaptive(start, start)
    for _ in range(start):
        limit.started("rollout", 0.0)
    return limit


def test_a_rejected_burst_lowers_the_limit_once_by_its_effects_and_not_for_their_repetitions():
    limit = full(64)
    for _ in range(5):
        for who in range(27):
            limit.rejected(None, 1.0, who)

    assert limit.current == 37


def test_rejections_of_one_round_trip_at_most_halve_the_limit():
    limit = full(64)
    for who in range(60):
        limit.rejected(None, 1.0, who)

    assert limit.current == 32


def test_chance_rejections_do_not_starve_a_run():
    world = World(lambda now: 37, chance=0.01).run()

    assert world.mean(0.3, 0.9) > 0.75 * 37


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chance", [0.3, 0.5])
@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_refusals_by_chance_alone_do_not_shrink_the_limit(seed, chance, retry_after):
    """As fast as what a client with a fixed limit reaches: the time of 2,000 tasks on 64 slots, and
    the start's.
    """
    world = World(
        lambda now: 10**9, ceiling=64, chance=chance, retry_after=retry_after, seed=seed
    ).run()

    ideal = world.tasks / 64 * 5.0 * math.exp(0.35**2 / 2)
    assert world.mean(0.3, 0.9) > 0.95 * 64
    assert world.now < (ideal + world.tasks / 64 * chance / (1 - chance)) * 1.4


@pytest.mark.parametrize("seed", range(4))
def test_capacity_is_found_among_refusals_by_chance(seed):
    world = World(lambda now: 37, chance=0.3, seed=seed).run()

    # What waits to be asked again is in flight too: a third of the calls, for about a sixth of
    # their time.
    assert 0.9 * 37 < world.mean(0.3, 0.9) < 1.4 * 37
    assert world.now < 1.3 * world.tasks / 37 * 5.0 * math.exp(0.35**2 / 2)


def test_capacity_that_falls_to_a_tenth_is_followed_down():
    world = World(lambda now: 64 if now < 100 else 6, tasks=1500).run()

    assert world.mean(0.6, 0.9) == pytest.approx(6, rel=0.2)


def test_what_the_service_was_seen_to_serve_is_known_once_it_shows_a_bound_and_never_falls():
    limit = Adaptive(8, 64)
    assert limit.served is None
    world = World(lambda now: 37 if now < 150 else 9, tasks=1500).run()
    assert 33 <= world.limit.served <= 41


def test_dispatch_is_held_until_the_latest_retry_after():
    limit = Adaptive(8, 8)
    limit.rejected(4.0, 100.0)
    limit.rejected(2.0, 100.0)

    assert limit.held_until == pytest.approx(104.0)


@pytest.mark.parametrize("retry_after", [1e9, math.inf, math.nan, -5.0, 0.0, None])
def test_absurd_retry_after_holds_for_two_minutes_at_most(retry_after):
    limit = Adaptive(8, 8)
    limit.rejected(retry_after, 100.0)

    assert limit.held_until <= 220.0


@pytest.mark.parametrize("slots", [37, 18])
def test_service_that_queues_is_backed_off_from_and_not_left_idle(slots):
    world = World(lambda now: slots, rejects=False).run()

    assert world.limit.current < 1.6 * slots
    assert world.now < 1.25 * world.tasks / slots * 5.0 * math.exp(0.35**2 / 2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("start", "ceiling"), [(8, 64), (64, 64), (8, 8), (8, 256)])
def test_service_that_does_not_queue_is_never_backed_off_from(start, ceiling, seed):
    world = World(lambda now: 10**9, start=start, ceiling=ceiling, seed=seed).run()

    assert world.only_grew()
    assert world.limit.current == ceiling


def test_effects_that_become_longer_are_told_from_a_queue():
    world = World(
        lambda now: 10**9,
        ceiling=64,
        tasks=4000,
        median=lambda now, lane: 5.0 if now < 100 else 10.0,
    ).run()

    assert "not queueing" in {reason for _, _, reason in world.changes}
    assert world.limit.current == 64
    assert world.mean(0.6, 0.9) == pytest.approx(64, rel=0.01)


def test_lanes_are_compared_with_themselves():
    world = World(
        lambda now: 10**9,
        ceiling=64,
        # Rollouts first, then ever more of what takes ten times as long.
        lane=lambda number: "reflection" if number > 600 and number % 2 else "rollout",
        median=lambda now, lane: {"rollout": 2.0, "reflection": 20.0}[lane],
    ).run()

    assert world.only_grew()


def test_answers_from_a_cache_neither_raise_nor_lower_the_limit():
    limit = Adaptive(8, 512)
    flying = [limit.started("rollout", 0.0) for _ in range(8)]
    for number in range(100):
        flying.append(limit.started("rollout", 0.0))
        limit.ended(flying.pop(0), "ok", 5.0 + number % 3)
    before = limit.current
    for _ in range(2000):
        flying.append(limit.started("rollout", 0.0))
        limit.ended(flying.pop(0), "ok", 0.001)

    assert limit.current == before


@pytest.mark.parametrize(("flying", "outcome"), [(1, "ok"), (8, "cancelled"), (8, "failed")])
def test_limit_that_is_not_reached_and_effects_that_say_nothing_do_not_raise_it(flying, outcome):
    limit = Adaptive(8, 64)
    for _ in range(300):
        dispatched = [limit.started("rollout", 0.0) for _ in range(flying)]
        for dispatch in dispatched:
            limit.ended(dispatch, outcome, 5.0)

    assert limit.current == 8


def test_every_change_is_told_in_order_and_none_without_a_change():
    world = World(lambda now: 37).run()

    assert world.changes[0] == (8, 9, "filled")
    assert all(old != new for old, new, _ in world.changes)
    assert world.changes[-1][1] == world.limit.current
    assert {reason for _, _, reason in world.changes} >= {"filled", "rejected", "probe"}


@given(st.data())
def test_invariants_hold_for_any_course(data):
    start = data.draw(st.integers(1, 40))
    ceiling = start + data.draw(st.integers(0, 60))
    limit = Adaptive(start, ceiling)
    flying = []
    now = 0.0
    kinds = st.sampled_from(["start", "start", "ok", "ok", "failed", "cancelled", "rejected"])
    for kind in data.draw(st.lists(kinds, max_size=300)):
        now += data.draw(st.sampled_from([0.0, 0.01, 1.0]))
        before, held = limit.current, limit.held_until
        if kind == "start":
            flying.append(limit.started("rollout", now))
            assert limit.current == before
        elif kind == "rejected":
            limit.rejected(
                data.draw(st.sampled_from([None, 0.5, math.inf, -1.0])),
                now,
                data.draw(st.integers(1, 3)),
            )
            assert max(1, before // 4) <= limit.current <= before
            assert limit.held_until <= max(held, now + 120.0)
        elif flying:
            limit.ended(flying.pop(), kind, now)
            assert kind != "cancelled" or limit.current == before
        assert 1 <= limit.current <= ceiling
