"""Slots: priorities, limits, retries and the books of all attempts."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError, RateLimitError, ServerError

from combee_dspy.exceptions import InfrastructureError
from combee_dspy.options import Validation
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts import (
    Adaptive,
    Asyncio,
    Batching,
    CallJob,
    ExecutorSession,
    Fixed,
    InfrastructureFaultError,
    Limit,
    RolloutJob,
    Slots,
    Threads,
    _alarm,
    _attempt,
    _patient,
    open_slots,
    patient,
)
from combee_dspy.rollouts._limits import Dispatch

PAUSE_AFTER = _patient.pause_after

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


class Steps(ExecutorSession):
    """Work begins when it has a slot and ends when the test says so; rollouts end as scripted."""

    def __init__(self, *script: Any) -> None:
        self.begun: list[Any] = []
        self.ends: dict[Any, asyncio.Future[None]] = {}
        self.script = list(script)
        self.closed = False

    async def run(self, work: Callable[[], Any]) -> Any:
        name = work()
        self.begun.append(name)
        self.ends[name] = asyncio.get_running_loop().create_future()
        await self.ends[name]
        return name

    async def rollout(self, job: RolloutJob) -> Rollout:
        self.begun.append(job.example_id)
        await asyncio.sleep(0)
        step = self.script.pop(0) if self.script else 1.0
        if isinstance(step, Exception):
            raise step
        return Rollout(
            job.example_id, step, usage=(CallUsage("task", "m", calls=1, prompt_tokens=1),)
        )

    async def close(self) -> None:
        self.closed = True


def job(name: str = "id", **given: Any) -> RolloutJob:
    example = dspy.Example(question=name).with_inputs("question")
    return RolloutJob(dspy.Predict("question -> answer"), example, name, len, **given)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def slotted(
    test: Callable[[Slots, Steps], Awaitable[None]],
    *script: Any,
    limit: Limit | None = None,
    **given: Any,
) -> Slots:
    async def main() -> Slots:
        session = Steps(*script)
        slots = Slots(session, limit or Fixed(1), **given)
        await test(slots, session)
        await slots.close()
        assert session.closed
        return slots

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)


def test_most_urgent_goes_first_and_equals_by_arrival():
    async def test(slots: Slots, session: Steps) -> None:
        wanted = [("first", (9,)), ("late", (2, 0)), ("a", (1, 5)), ("b", (1, 5)), ("urgent", (0,))]
        tasks = [
            asyncio.ensure_future(slots.run(lambda name=name: name, priority))
            for name, priority in wanted
        ]
        for name in ("first", "urgent", "a", "b", "late"):
            await settle()
            assert session.begun[-1] == name
            assert slots._flying == 1
            session.ends[name].set_result(None)
        assert await asyncio.gather(*tasks) == [name for name, _ in wanted]

    slotted(test)


def test_what_is_refused_when_it_has_its_slot_is_not_sent_and_hands_the_slot_on():
    asked: list[int] = []

    def refuse() -> None:
        asked.append(slots_now[0]._flying)
        raise TimeoutError("too late")

    slots_now: list[Slots] = []

    async def test(slots: Slots, session: Steps) -> None:
        slots_now.append(slots)
        first = asyncio.ensure_future(slots.run(lambda: "a", (0,)))
        await settle()
        late = [
            asyncio.ensure_future(slots.run(lambda: "b", (1,), refuse)),
            asyncio.ensure_future(slots.rollout(job(), (2,), refuse)),
        ]
        last = asyncio.ensure_future(slots.run(lambda: "c", (3,)))
        await settle()
        assert not asked
        session.ends["a"].set_result(None)
        await settle()
        session.ends["c"].set_result(None)
        assert await asyncio.gather(first, last) == ["a", "c"]
        assert [type(one.exception()) for one in late] == [TimeoutError] * 2
        assert (session.begun, asked, slots._flying) == (["a", "c"], [1, 1], 0)
        with pytest.raises(TimeoutError, match="too late"):  # there is a slot at once
            await slots.run(lambda: "d", (0,), refuse)
        assert slots._flying == 0

    slotted(test)


def test_seconds_that_a_check_takes_are_the_queues_and_not_the_services():
    class Heard(Fixed):
        def started(self, lane: str, now: float) -> Dispatch:
            heard.append(now)
            return super().started(lane, now)

    async def check() -> None:
        await asyncio.sleep(0.01)
        heard.append(time.monotonic())

    async def main() -> Rollout:
        return await Slots(Steps(), Heard(1)).rollout(job(), (0,), check)

    heard: list[float] = []
    found = asyncio.run(main())
    checked, began = heard

    assert checked <= began
    assert found.queue_seconds >= 0.01


def test_no_more_than_the_limit_are_in_flight():
    async def test(slots: Slots, session: Steps) -> None:
        tasks = [asyncio.ensure_future(slots.run(lambda n=n: n, (0,))) for n in range(7)]
        await settle()
        assert (session.begun, slots.capacity) == ([0, 1, 2], 3)
        for number in range(7):
            session.ends[number].set_result(None)
            await settle()
        await asyncio.gather(*tasks)

    slotted(test, limit=Fixed(3))


def test_cancelled_while_waiting_leaves_the_queue_and_gives_no_slot_away():
    async def test(slots: Slots, session: Steps) -> None:
        first, gone, last = (asyncio.ensure_future(slots.run(lambda n=n: n, (0,))) for n in "abc")
        await settle()
        gone.cancel()
        await settle()
        session.ends["a"].set_result(None)
        await settle()
        session.ends["c"].set_result(None)
        assert await asyncio.gather(first, last) == ["a", "c"]
        assert session.begun == ["a", "c"]
        assert slots._flying == 0

    slotted(test)


def test_cancelled_in_the_moment_it_gets_its_slot_hands_it_on():
    async def test(slots: Slots, session: Steps) -> None:
        first, gone, last = (asyncio.ensure_future(slots.run(lambda n=n: n, (0,))) for n in "abc")
        await settle()
        session.ends["a"].set_result(None)
        await first
        gone.cancel()  # it has the slot, and has not run since
        await settle()
        session.ends["c"].set_result(None)
        assert await last == "c"
        assert slots._flying == 0

    slotted(test)


def test_closing_cancels_what_waits():
    async def main() -> None:
        session = Steps()
        slots = Slots(session, Fixed(1))
        first, waits = (asyncio.ensure_future(slots.run(lambda n=n: n, (0,))) for n in "ab")
        await settle()
        session.ends["a"].set_result(None)
        await slots.close()
        assert await first == "a"
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(main())


def fault(**given: Any) -> InfrastructureFaultError:
    usage = (CallUsage("task", "m", calls=1, errors=1),)
    return InfrastructureFaultError(
        "down", **{"retryable": True, "outage": "rollout" not in given, "usage": usage, **given}
    )


def test_one_search_can_take_back_what_waits_and_what_pauses_ends_with_what_it_has_cost(
    monkeypatch,
):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 1e6)

    async def test(slots: Slots, session: Steps) -> None:
        pausing = asyncio.ensure_future(slots.rollout(job(), (0, 7)))
        while not session.begun or slots._flying:
            await settle()
        running, waiting, others = (
            asyncio.ensure_future(slots.run(lambda n=n: n, (1, search)))
            for n, search in (("a", 7), ("b", 7), ("c", 8))
        )
        await settle()
        with slots.refusing(7):
            with pytest.raises(InfrastructureError, match="down") as caught:
                await pausing
            assert caught.value.usage == fault().usage
            with pytest.raises(asyncio.CancelledError):
                await slots.rollout(job("late"), (0, 7))
            session.ends["a"].set_result(None)
            await settle()
            session.ends["c"].set_result(None)
            assert await asyncio.gather(running, others) == ["a", "c"]
        assert waiting.cancelled()
        assert (await slots.rollout(job(), (0, 7))).score == 1.0

    slotted(test, fault())


def test_attempt_that_waits_for_a_slot_again_ends_with_what_it_has_cost():
    async def test(slots: Slots, session: Steps) -> None:
        again = asyncio.ensure_future(slots.rollout(job(), (1, 7)))
        blocking = asyncio.ensure_future(slots.run(lambda: "a", (0, 8)))
        while "a" not in session.begun:
            await settle()
        await settle()
        with slots.refusing(7), pytest.raises(InfrastructureError) as caught:
            await again
        assert caught.value.usage == fault().usage
        session.ends["a"].set_result(None)
        await blocking

    slotted(test, fault())


def test_fault_in_passing_is_tried_again_and_its_usage_kept():
    async def test(slots: Slots, session: Steps) -> None:
        found = await slots.rollout(job(), (0,))
        assert found.score == 1.0
        assert found.usage == (CallUsage("task", "m", calls=3, errors=2, prompt_tokens=1),)

    slotted(test, fault(), fault(), 1.0)


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
def test_an_outage_that_patience_covers_ends_nothing_and_a_longer_one_is_given_up(
    monkeypatch, rejected
):
    clock = Clock(monkeypatch)

    class Down(Steps):
        async def rollout(self, job: RolloutJob) -> Rollout:
            self.script[:] = [fault(rejected=rejected)] if clock.now < self.until else []
            return await super().rollout(job)

    async def main() -> None:
        session = Down()
        slots = Slots(session, Fixed(1), patience=120.0)
        session.until = 60.0
        assert (await slots.rollout(job(), (0,))).score == 1.0
        clock.now, session.until = 0.0, 1e9
        with pytest.raises(InfrastructureError, match=r"Search\(patience=120\)"):
            await slots.rollout(job(), (0,))
        assert 60 < clock.now <= 120
        await slots.close()

    asyncio.run(main())


def test_a_service_that_answers_nothing_is_told_of_while_it_is_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(_alarm, "_SILENCE", 0.001)
    monkeypatch.setattr(_patient, "pause_after", PAUSE_AFTER)

    async def test(slots: Slots, session: Steps) -> None:
        waiting = asyncio.ensure_future(slots.rollout(job(), (0,)))
        while "only" not in caplog.text:
            await asyncio.sleep(0.001)
        assert "too many requests (HTTP 429 or 503)" in caplog.text
        assert (await waiting).score == 1.0
        said = len(caplog.records)
        await asyncio.sleep(0.01)
        assert len(caplog.records) == said, "what answers again is not complained of"

    slotted(test, fault(rejected=True, retry_after=0.5))


def test_outage_ends_with_what_it_has_cost():
    async def test(slots: Slots, session: Steps) -> None:
        with pytest.raises(InfrastructureError) as caught:
            await slots.rollout(job(), (0,))
        assert caught.value.attempts == 3
        assert caught.value.usage == (CallUsage("task", "m", calls=3, errors=3),)
        with pytest.raises(InfrastructureError):
            await slots.rollout(job(), (0,))
        assert len(session.begun) == 4  # what cannot pass is tried once

    slotted(test, fault(), fault(), fault(), fault(retryable=False), patience=0.0)


def test_failure_that_nobody_can_assign_is_scored_in_the_end():
    scored = Rollout("id", -1.0, error="LMUnexpectedError: what", failed_in="service")

    async def test(slots: Slots, session: Steps) -> None:
        found = await slots.rollout(job(), (0,))
        assert (found.score, found.failed_in) == (-1.0, "service")
        assert found.usage[0].calls == 3

    slotted(test, *(fault(rollout=scored) for _ in range(3)))


def test_rejections_are_no_attempts_and_lower_an_adaptive_limit():
    changes: list[tuple[int, str]] = []

    async def test(slots: Slots, session: Steps) -> None:
        found = await slots.rollout(job(), (0,))
        assert found.score == 1.0
        assert found.usage[0].calls == 13
        assert slots.capacity < 8

    rejections = [fault(rejected=True, retry_after=0.0) for _ in range(12)]
    slotted(
        test,
        *rejections,
        1.0,
        limit=Adaptive(8, 8),
        on_change=lambda *change: changes.append(change),
    )
    assert changes[0] == (7, "rejected")


def test_nothing_goes_while_the_service_asks_to_wait():
    async def test(slots: Slots, session: Steps) -> None:
        task = asyncio.ensure_future(slots.run(lambda: "a", (0,)))
        await settle()
        assert session.begun == []
        limit.held_until = 0.0
        slots._wake()
        await settle()
        session.ends["a"].set_result(None)
        assert await task == "a"

    limit = Fixed(4)
    limit.held_until = float("inf")
    slotted(test, limit=limit)


def test_slots_adapt_to_more_than_they_start_with():
    async def test(slots: Slots, session: Steps) -> None:
        await asyncio.gather(*(slots.rollout(job(str(n)), (n,)) for n in range(50)))
        assert slots.capacity > 2

    slotted(test, limit=Adaptive(2, 64))


def test_batches_wait_for_company():
    async def test(slots: Slots, session: Steps) -> None:
        first = asyncio.ensure_future(slots.rollout(job("a"), (1,)))
        await settle()
        assert session.begun == []
        await asyncio.gather(first, slots.rollout(job("b"), (0,)))
        assert session.begun == ["b", "a"]

    slotted(test, limit=Fixed(4), batching=Batching(queue=2))


def raising(error: type[BaseException]) -> None:
    raise error


def threaded(
    test: Callable[[Slots], Awaitable[Any]], workers: int = 4, limit: Limit | None = None
) -> Any:
    async def main() -> Any:
        slots = Slots(Threads().start(workers), limit or Fixed(workers))
        try:
            return await test(slots)
        finally:
            await slots.close()

    return asyncio.run(main())


def test_threads_run_work_in_the_callers_context_and_raise_its_errors():
    def breaks() -> None:
        raise KeyError("mine")

    async def test(slots: Slots) -> None:
        token = VARIABLE.set("mine")
        found = await asyncio.gather(
            *(
                slots.run(lambda: (VARIABLE.get(), threading.current_thread()), (0,))
                for _ in range(40)
            )
        )
        VARIABLE.reset(token)
        assert {value for value, _ in found} == {"mine"}
        assert len({thread for _, thread in found}) <= 4
        assert threading.main_thread() not in {thread for _, thread in found}
        with pytest.raises(KeyError, match="mine"):
            await slots.run(breaks, (0,))
        for ending in (StopIteration, SystemExit, asyncio.CancelledError):
            with pytest.raises(RuntimeError, match=ending.__name__):
                await slots.run(partial(raising, ending), (0,))

    threaded(test)


def test_closed_session_has_ended_its_threads_and_takes_no_more():
    async def main() -> None:
        session = Threads().start(3)
        before = threading.active_count()
        await asyncio.gather(*(session.run(lambda: None) for _ in range(3)))
        await session.close()
        await session.close()
        while threading.active_count() > before:
            await asyncio.sleep(0.001)
        with pytest.raises(RuntimeError, match="closed"):
            await session.run(lambda: None)

    asyncio.run(main())


def test_closing_does_not_wait_for_a_thread_whose_awaiter_was_cancelled_and_it_ends_later():
    running, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        release.wait(30)
        ended.set()

    async def main() -> None:
        session = Threads().start(1)
        task = asyncio.ensure_future(session.run(work))
        while not running.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await session.run(lambda: 1) == 1, "another thread takes its place"
        await session.close()

    asyncio.run(main())
    assert not ended.is_set()
    release.set()
    assert ended.wait(30)


def real(
    scripted: Any,
    example: dspy.Example,
    reply: Any,
    attempts: int = 3,
    program: dspy.Module | None = None,
) -> Any:
    lm = scripted(reply)
    asked = dspy.Predict("question -> answer") if program is None else program

    async def main() -> Any:
        with dspy.context(lm=patient(lm)):
            slots = Slots(Threads().start(2), Adaptive(8, 8), attempts=attempts)
            try:
                rollout = RolloutJob(asked, example, "id", lambda *_: 1.0)
                return await slots.rollout(rollout, (0,)), slots.capacity, lm
            finally:
                await slots.close()

    return asyncio.run(main())


def test_rejected_call_waits_inside_its_rollout_and_lowers_the_limit(scripted, example):
    reply = lambda prompt, attempt: (  # noqa: E731
        RateLimitError("full", retry_after=0.0) if attempt <= 4 else "42"
    )
    rollout, capacity, lm = real(scripted, example, reply)

    assert rollout.score == 1.0
    assert [(row.calls, row.errors, row.prompt_tokens) for row in rollout.usage] == [(5, 4, 5)]
    assert lm.engine.attempts == 5
    assert capacity == 7


def test_rejected_call_in_a_thread_of_dspys_own_lowers_the_limit_too(scripted, example):
    class Both(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            work = [(self.ask, {"question": question})] * 2
            return dspy.Parallel(num_threads=2, disable_progress_bar=True)(work)[0]

    reply = lambda prompt, attempt: (  # noqa: E731
        RateLimitError("full", retry_after=0.0) if attempt <= 4 else "42"
    )
    rollout, capacity, _ = real(scripted, example, reply, program=Both())

    assert (rollout.score, capacity) == (1.0, 7)


@pytest.mark.parametrize("executor", [Threads(), Asyncio()])
@pytest.mark.parametrize("ends", ["refusing", "close"])
def test_lm_that_waits_for_a_full_service_waits_no_longer_than_it_is_wanted(
    scripted, example, executor, ends, monkeypatch
):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 100.0)
    lm = patient(
        scripted(
            lambda prompt, attempt: (
                RateLimitError("full", retry_after=100.0) if attempt > 1 else "42"
            )
        )
    )

    class Twice(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            return [self.ask(question=question), self.ask(question=question)][1]

        async def aforward(self, question: str) -> Any:
            return [
                await self.ask.acall(question=question),
                await self.ask.acall(question=question),
            ][1]

    async def main() -> InfrastructureError:
        with dspy.context(lm=lm):
            slots = Slots(executor.start(1), Fixed(1))
            task = asyncio.ensure_future(
                slots.rollout(RolloutJob(Twice(), example, "id", len), (0, 3))
            )
            while lm.engine.attempts < 2:
                await asyncio.sleep(0.001)
            if ends == "refusing":
                with slots.refusing(3):
                    await asyncio.wait([task], timeout=30)
            await asyncio.wait_for(slots.close(), 30)
            with pytest.raises(InfrastructureError, match="full") as caught:
                await task
            return caught.value

    assert [(row.calls, row.errors, row.prompt_tokens) for row in asyncio.run(main()).usage] == [
        (2, 1, 5)
    ]


def test_thread_that_a_program_abandons_is_in_no_other_books_and_prints_nothing(
    scripted, example, capfd, caplog
):
    release, late = threading.Event(), []

    def reply(prompt: str, attempt: int) -> Any:
        if "late" in prompt and not release.is_set():
            release.wait(30)
            return RateLimitError("full", retry_after=0.0)
        return "42"

    class Abandons(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            asked = self.ask(question=question)
            work = partial(contextvars.copy_context().run, self.ask, question="late")
            late.append(threading.Thread(target=work, daemon=True))
            late[-1].start()
            return asked

    async def main(program: dspy.Module) -> Rollout:
        with dspy.context(lm=patient(lm)):
            slots = Slots(Threads().start(1), Adaptive(1, 1))
            try:
                return await slots.rollout(RolloutJob(program, example, "id", lambda *_: 1.0), (0,))
            finally:
                await slots.close()

    async def meanwhile() -> Rollout:
        ended = asyncio.ensure_future(main(dspy.Predict("question -> answer")))
        release.set()
        await asyncio.to_thread(late[0].join, 30)
        return await ended

    lm = scripted(reply)
    assert [(row.calls, row.errors) for row in asyncio.run(main(Abandons())).usage] == [(1, 0)]
    assert [(row.calls, row.errors) for row in asyncio.run(meanwhile()).usage] == [(1, 0)]
    assert not late[0].is_alive()
    assert (capfd.readouterr().err, caplog.records) == ("", [])


def test_transient_error_is_tried_again_as_a_rollout(scripted, example):
    reply = lambda prompt, attempt: ServerError("down") if attempt == 1 else "42"  # noqa: E731
    rollout, _, _ = real(scripted, example, reply)

    assert [(row.calls, row.errors, row.prompt_tokens) for row in rollout.usage] == [(2, 1, 5)]
    assert rollout.queue_seconds >= 0


def test_bad_key_ends_the_run_at_once(scripted, example):
    with pytest.raises(InfrastructureError, match="LMAuthError") as caught:
        real(scripted, example, lambda *_: AuthError("who are you"))

    assert caught.value.usage[0].errors == 1


def called(scripted: Any, reply: Any, executor: Any = None, **given: Any) -> Any:
    lm = scripted(reply)

    async def main() -> Any:
        slots = Slots((executor or Threads()).start(2), Fixed(2))
        try:
            signature = dspy.Signature("question -> answer")
            return await slots.call(
                CallJob(signature, {"question": "why"}, lm=lm, adapter=dspy.ChatAdapter(), **given),
                (0,),
            )
        finally:
            await slots.close()

    return asyncio.run(main()), lm


def test_call_returns_the_prediction_in_its_role_at_its_temperature(scripted):
    answer, lm = called(scripted, lambda *_: "because", role="reflector", temperature=0.7)

    assert answer.outcome.answer == "because"
    assert [(row.role, row.calls) for row in answer.usage] == [("reflector", 1)]
    assert lm.engine.requests[0].config.temperature == 0.7


@pytest.mark.parametrize("executor", [Threads(), Asyncio()])
def test_call_that_takes_longer_than_it_may_has_failed(scripted, executor):
    never = threading.Event()

    def drips(*_: Any) -> str:
        never.wait(30)
        return "because"

    answer, lm = called(scripted, drips, executor, seconds=0.2)
    never.set()

    assert answer.outcome.error.startswith("RolloutTimeoutError: it took longer than 0.2 seconds")
    assert [(row.role, row.calls, row.errors) for row in answer.usage] == [("proposer", 1, 1)]
    assert lm.engine.attempts == 1


def test_answer_that_does_not_parse_is_asked_for_once_more_and_then_failed(scripted):
    # ChatAdapter itself asks again in JSON.
    second, _ = called(scripted, lambda prompt, attempt: "nothing\0" if attempt <= 2 else "because")
    failed, lm = called(scripted, lambda *_: "nothing\0")

    assert second.outcome.answer == "because"
    assert second.usage[0].calls == 3
    assert failed.outcome.error.startswith("AdapterParseError")
    assert failed.usage[0].calls == lm.engine.attempts == 4


def test_without_a_number_more_go_as_long_as_the_service_takes_them() -> None:
    async def level(num_threads: int | None) -> int:
        async with open_slots(num_threads) as slots:
            await asyncio.gather(*(slots.run(lambda: None, (0,)) for _ in range(64)))
            return slots.capacity

    assert asyncio.run(level(3)) == 3
    assert asyncio.run(level(None)) > 16


def test_a_call_outside_of_a_search_has_the_limit_of_one_in_it() -> None:
    assert CallJob(dspy.Signature("a -> b"), {}).seconds == Validation().rollout_seconds
