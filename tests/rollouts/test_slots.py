"""Slots: who goes first, how many at once, what is repeated, and the usage of all attempts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import dspy
import pytest

from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts import (
    Adaptive,
    Batching,
    ExecutorSession,
    Fixed,
    InfrastructureFaultError,
    Limit,
    RolloutJob,
    Slots,
    _alarm,
    _attempt,
    _patient,
    open_slots,
)
from combee_dspy.rollouts._limits import Dispatch

PAUSE_AFTER = _patient.pause_after


class Steps(ExecutorSession):
    """Work ends when the test says so; rollouts end as scripted."""

    def __init__(self, *script: Any) -> None:
        self.started: list[Any] = []
        self.ends: dict[Any, asyncio.Future[None]] = {}
        self.script = list(script)
        self.closed = False

    async def run(self, work: Callable[[], Any]) -> Any:
        name = work()
        self.started.append(name)
        self.ends[name] = asyncio.get_running_loop().create_future()
        await self.ends[name]
        return name

    async def rollout(self, job: RolloutJob) -> Rollout:
        self.started.append(job.example_id)
        await asyncio.sleep(0)
        step = self.script.pop(0) if self.script else 1.0
        if isinstance(step, Exception):
            raise step
        return Rollout(job.example_id, step, usage=(CallUsage("task", "m", 1, prompt_tokens=1),))

    async def close(self) -> None:
        self.closed = True

    def end(self, name: Any) -> None:
        self.ends[name].set_result(None)


def job(name: str = "id") -> RolloutJob:
    example = dspy.Example(question=name).with_inputs("question")
    return RolloutJob(dspy.Predict("question -> answer"), example, name, len)


def begin(slots: Slots, name: Any, *priority: int, **options: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(slots.run(lambda: name, priority or (0,), **options))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def in_slots(
    test: Callable[[Slots, Steps], Awaitable[None]],
    *script: Any,
    limit: Limit | None = None,
    **options: Any,
) -> None:
    async def main() -> None:
        session = Steps(*script)
        slots = Slots(session, limit or Fixed(1), **options)
        await test(slots, session)
        await slots.close()
        assert session.closed
        assert slots._flying == 0

    asyncio.run(main())


def fault(**options: Any) -> InfrastructureFaultError:
    usage = (CallUsage("task", "m", calls=1, errors=1),)
    defaults = {"retryable": True, "outage": "rollout" not in options, "usage": usage}
    return InfrastructureFaultError("down", **{**defaults, **options})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)


def test_the_most_urgent_goes_first_and_equals_by_arrival():
    async def test(slots: Slots, session: Steps) -> None:
        priorities = {"first": (9,), "late": (2, 0), "a": (1, 5), "b": (1, 5), "urgent": (0,)}
        tasks = [begin(slots, name, *priority) for name, priority in priorities.items()]
        for name in ("first", "urgent", "a", "b", "late"):
            await settle()
            assert session.started[-1] == name
            session.end(name)
        assert await asyncio.gather(*tasks) == list(priorities)

    in_slots(test)


def test_no_more_than_the_limit_are_in_flight():
    async def test(slots: Slots, session: Steps) -> None:
        tasks = [begin(slots, number) for number in range(7)]
        await settle()
        assert (session.started, slots.capacity, slots.queued) == ([0, 1, 2], 3, 4)
        for number in range(7):
            session.end(number)
            await settle()
        await asyncio.gather(*tasks)

    in_slots(test, limit=Fixed(3))


def test_an_effect_that_its_check_refuses_is_not_sent_and_hands_its_slot_on():
    async def refuse() -> None:
        raise TimeoutError("too late")

    async def test(slots: Slots, session: Steps) -> None:
        first = begin(slots, "a")
        await settle()
        late = [
            begin(slots, "b", 1, check=refuse),
            asyncio.ensure_future(slots.rollout(job(), (2,), refuse)),
        ]
        last = begin(slots, "c", 3)
        session.end("a")
        await settle()
        session.end("c")
        assert await asyncio.gather(first, last) == ["a", "c"]
        assert [type(task.exception()) for task in late] == [TimeoutError] * 2
        assert session.started == ["a", "c"]
        with pytest.raises(TimeoutError, match="too late"):  # there is a slot at once
            await slots.run(lambda: "d", (0,), refuse)

    in_slots(test)


def test_seconds_of_a_check_are_the_queues_and_not_the_services():
    times: list[float] = []

    class Watched(Fixed):
        def started(self, lane: str, now: float) -> Dispatch:
            times.append(now)
            return super().started(lane, now)

    async def check() -> None:
        await asyncio.sleep(0.01)
        times.append(time.monotonic())

    async def test(slots: Slots, session: Steps) -> None:
        rollout = await slots.rollout(job(), (0,), check)
        assert rollout.queue_seconds >= 0.01

    in_slots(test, limit=Watched(1))
    assert times == sorted(times)


@pytest.mark.parametrize("has_slot", [False, True])
def test_a_cancelled_effect_leaves_the_queue_or_hands_its_slot_on(has_slot):
    async def test(slots: Slots, session: Steps) -> None:
        first, cancelled, last = (begin(slots, name) for name in "abc")
        await settle()
        if has_slot:
            session.end("a")
            await first
        cancelled.cancel()
        await settle()
        if not has_slot:
            session.end("a")
            await settle()
        session.end("c")
        assert await asyncio.gather(first, last) == ["a", "c"]
        assert has_slot or session.started == ["a", "c"]

    in_slots(test)


def test_closing_cancels_what_waits():
    async def test(slots: Slots, session: Steps) -> None:
        first, waits = begin(slots, "a"), begin(slots, "b")
        await settle()
        session.end("a")
        await slots.close()
        assert await first == "a"
        with pytest.raises(asyncio.CancelledError):
            await waits

    in_slots(test)


def test_a_search_can_take_back_what_waits_and_what_pauses_ends_with_its_usage(monkeypatch):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 1e6)

    async def test(slots: Slots, session: Steps) -> None:
        pausing = asyncio.ensure_future(slots.rollout(job(), (0, 7)))
        while not session.started or slots._flying:
            await settle()
        running, waiting, other = (
            begin(slots, name, 1, search) for name, search in (("a", 7), ("b", 7), ("c", 8))
        )
        await settle()
        with slots.refusing(7):
            with pytest.raises(InfrastructureError, match="down") as caught:
                await pausing
            assert caught.value.usage == fault().usage
            with pytest.raises(asyncio.CancelledError):
                await slots.rollout(job("late"), (0, 7))
            session.end("a")
            await settle()
            session.end("c")
            assert await asyncio.gather(running, other) == ["a", "c"]
        assert waiting.cancelled()
        assert (await slots.rollout(job(), (0, 7))).score == 1.0

    in_slots(test, fault())


def test_a_second_attempt_that_waits_for_a_slot_ends_with_the_usage_of_the_first():
    async def test(slots: Slots, session: Steps) -> None:
        again = asyncio.ensure_future(slots.rollout(job(), (1, 7)))
        blocking = begin(slots, "a", 0, 8)
        while "a" not in session.started:
            await settle()
        await settle()
        with slots.refusing(7), pytest.raises(InfrastructureError) as caught:
            await again
        assert caught.value.usage == fault().usage
        session.end("a")
        await blocking

    in_slots(test, fault())


def test_a_fault_is_repeated_and_its_usage_counted():
    async def test(slots: Slots, session: Steps) -> None:
        rollout = await slots.rollout(job(), (0,))
        assert rollout.score == 1.0
        assert rollout.usage == (CallUsage("task", "m", calls=3, errors=2, prompt_tokens=1),)

    in_slots(test, fault(), fault(), 1.0)


def test_an_outage_ends_after_all_attempts_and_a_fatal_fault_after_one():
    async def test(slots: Slots, session: Steps) -> None:
        with pytest.raises(InfrastructureError) as caught:
            await slots.rollout(job(), (0,))
        assert caught.value.attempts == 3
        assert caught.value.usage == (CallUsage("task", "m", calls=3, errors=3),)
        with pytest.raises(InfrastructureError):
            await slots.rollout(job(), (0,))
        assert len(session.started) == 4

    in_slots(test, fault(), fault(), fault(), fault(retryable=False), patience=0.0)


def test_a_few_attempts_are_not_said_to_have_taken_the_patience_of_a_search():
    async def test(slots: Slots, session: Steps) -> None:
        with pytest.raises(InfrastructureError) as caught:
            await slots.rollout(job(), (0,))
        assert (caught.value.attempts, caught.value.reason) == (3, "down")

    in_slots(test, *(fault(outage=False) for _ in range(3)), patience=0.0)


def test_a_failure_that_nobody_can_assign_is_scored_in_the_end():
    failed = Rollout("id", -1.0, error="LMUnexpectedError: what", failed_in="service")

    async def test(slots: Slots, session: Steps) -> None:
        rollout = await slots.rollout(job(), (0,))
        assert (rollout.score, rollout.failed_in) == (-1.0, "service")
        assert rollout.usage[0].calls == 3

    in_slots(test, *(fault(rollout=failed) for _ in range(3)))


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(_attempt, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(_patient, "pause_after", PAUSE_AFTER)
        monkeypatch.setattr(_attempt.Halt, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> bool:
        self.now += seconds
        await asyncio.sleep(0)
        return False


@pytest.mark.parametrize("rejected", [True, False])
def test_an_outage_within_patience_ends_nothing_and_a_longer_one_is_given_up(monkeypatch, rejected):
    clock = Clock(monkeypatch)

    class Down(Steps):
        until = 60.0

        async def rollout(self, job: RolloutJob) -> Rollout:
            self.script[:] = [fault(rejected=rejected)] if clock.now < self.until else []
            return await super().rollout(job)

    async def main() -> None:
        session = Down()
        slots = Slots(session, Fixed(1), patience=120.0)
        assert (await slots.rollout(job(), (0,))).score == 1.0
        clock.now, session.until = 0.0, 1e9
        with pytest.raises(InfrastructureError, match=r"Search\(patience=120\)"):
            await slots.rollout(job(), (0,))
        assert 60 < clock.now <= 120
        await slots.close()

    asyncio.run(main())


def test_a_service_without_answers_is_warned_of_until_it_answers(monkeypatch, caplog):
    monkeypatch.setattr(_alarm, "_SILENCE", 0.001)
    monkeypatch.setattr(_patient, "pause_after", PAUSE_AFTER)

    async def test(slots: Slots, session: Steps) -> None:
        waiting = asyncio.ensure_future(slots.rollout(job(), (0,)))
        while "only" not in caplog.text:
            await asyncio.sleep(0.001)
        assert "too many requests (HTTP 429 or 503)" in caplog.text
        assert (await waiting).score == 1.0
        warnings = len(caplog.records)
        await asyncio.sleep(0.01)
        assert len(caplog.records) == warnings

    in_slots(test, fault(rejected=True, retry_after=0.5))


def test_rejections_are_no_attempts_and_lower_an_adaptive_limit():
    changes: list[tuple[int, str]] = []

    async def test(slots: Slots, session: Steps) -> None:
        rollout = await slots.rollout(job(), (0,))
        assert (rollout.score, rollout.usage[0].calls) == (1.0, 13)
        assert slots.capacity < 8

    rejections = [fault(rejected=True, retry_after=0.0) for _ in range(12)]
    note = lambda *change: changes.append(change)  # noqa: E731
    in_slots(test, *rejections, 1.0, limit=Adaptive(8, 8), on_change=note)
    assert changes[0] == (7, "rejected")


def test_nothing_goes_while_the_service_asks_to_wait():
    limit = Fixed(4)
    limit.held_until = float("inf")

    async def test(slots: Slots, session: Steps) -> None:
        task = begin(slots, "a")
        await settle()
        assert session.started == []
        limit.held_until = 0.0
        slots._wake()
        await settle()
        session.end("a")
        assert await task == "a"

    in_slots(test, limit=limit)


def test_batches_wait_for_company():
    async def test(slots: Slots, session: Steps) -> None:
        first = asyncio.ensure_future(slots.rollout(job("a"), (1,)))
        await settle()
        assert session.started == []
        await asyncio.gather(first, slots.rollout(job("b"), (0,)))
        assert session.started == ["b", "a"]

    in_slots(test, limit=Fixed(4), batching=Batching(queue=2))


@pytest.mark.parametrize(("num_threads", "least", "most"), [(3, 3, 3), (None, 17, 256)])
def test_without_a_number_more_go_as_long_as_the_service_takes_them(num_threads, least, most):
    async def capacity() -> int:
        async with open_slots(num_threads) as slots:
            await asyncio.gather(*(slots.run(lambda: None, (0,)) for _ in range(64)))
            return slots.capacity

    assert least <= asyncio.run(capacity()) <= most
