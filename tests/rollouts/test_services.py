"""Rollouts and calls in slots at a service that is full, down or slow: what is repeated and
counted.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError, RateLimitError, ServerError

from combee_dspy.exceptions import InfrastructureError
from combee_dspy.options import Validation
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts import (
    Adaptive,
    Answer,
    Asyncio,
    CallJob,
    Executor,
    Fixed,
    RolloutJob,
    RolloutTimeoutError,
    Slots,
    Threads,
    _attempt,
    _patient,
    patient,
)

both_executors = pytest.mark.parametrize("executor", [Threads(), Asyncio()])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)


class Asks(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        return self.ask(question=question)


def roll(lm: dspy.LM, example: dspy.Example, program: dspy.Module) -> tuple[Rollout, int]:
    """Run a rollout in 8 slots; return it and how many slots are left."""

    async def main() -> tuple[Rollout, int]:
        with dspy.context(lm=patient(lm)):
            slots = Slots(Threads().start(2), Adaptive(8, 8))
            try:
                job = RolloutJob(program, example, "id", lambda *_: 1.0)
                return await slots.rollout(job, (0,)), slots.capacity
            finally:
                await slots.close()

    return asyncio.run(main())


def counts(usage: tuple[CallUsage, ...]) -> list[tuple[int, int, int]]:
    return [(row.calls, row.errors, row.prompt_tokens) for row in usage]


def full(times: int) -> Callable[[str, int], Any]:
    error = RateLimitError("full", retry_after=0.0)
    return lambda prompt, attempt: error if attempt <= times else "42"


def test_a_rejected_call_waits_inside_its_rollout_and_lowers_the_limit(scripted, example):
    rollout, capacity = roll(scripted(full(4)), example, Asks())
    assert rollout.score == 1.0
    assert counts(rollout.usage) == [(5, 4, 5)]
    assert capacity == 7


def test_a_rejected_call_in_a_thread_of_dspy_lowers_the_limit_too(scripted, example):
    class InParallel(Asks):
        def forward(self, question: str) -> Any:
            work = [(self.ask, {"question": question})] * 2
            return dspy.Parallel(num_threads=2, disable_progress_bar=True)(work)[0]

    rollout, capacity = roll(scripted(full(4)), example, InParallel())
    assert (rollout.score, capacity) == (1.0, 7)


def test_a_transient_error_is_repeated(scripted, example):
    lm = scripted(lambda prompt, attempt: ServerError("down") if attempt == 1 else "42")
    assert counts(roll(lm, example, Asks())[0].usage) == [(2, 1, 5)]


def test_a_bad_key_ends_the_run_at_once(scripted, example):
    with pytest.raises(InfrastructureError, match="LMAuthError") as caught:
        roll(scripted(lambda *_: AuthError("who are you")), example, Asks())
    assert caught.value.usage[0].errors == 1


@both_executors
@pytest.mark.parametrize("ends", ["refusing", "close"])
def test_an_lm_waits_for_a_full_service_no_longer_than_its_search(
    scripted, example, executor: Executor, ends, monkeypatch
):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 100.0)
    error = RateLimitError("full", retry_after=100.0)
    lm = patient(scripted(lambda prompt, attempt: error if attempt > 1 else "42"))

    class AsksTwice(Asks):
        def forward(self, question: str) -> Any:
            self.ask(question=question)
            return self.ask(question=question)

        async def aforward(self, question: str) -> Any:
            await self.ask.acall(question=question)
            return await self.ask.acall(question=question)

    async def main() -> InfrastructureError:
        with dspy.context(lm=lm):
            slots = Slots(executor.start(1), Fixed(1))
            job = RolloutJob(AsksTwice(), example, "id", len)
            task = asyncio.ensure_future(slots.rollout(job, (0, 3)))
            while lm.engine.attempts < 2:
                await asyncio.sleep(0.001)
            if ends == "refusing":
                with slots.refusing(3):
                    await asyncio.wait([task], timeout=30)
            await asyncio.wait_for(slots.close(), 30)
            with pytest.raises(InfrastructureError, match="full") as caught:
                await task
            return caught.value

    assert counts(asyncio.run(main()).usage) == [(2, 1, 5)]


def test_a_thread_that_a_program_leaves_behind_is_in_no_other_usage_and_prints_nothing(
    scripted, example, capfd, caplog
):
    release, late = threading.Event(), []

    def reply(prompt: str, attempt: int) -> Any:
        if "late" in prompt and not release.is_set():
            release.wait(30)
            return RateLimitError("full", retry_after=0.0)
        return "42"

    class LeavesBehind(Asks):
        def forward(self, question: str) -> Any:
            answer = self.ask(question=question)
            work = partial(contextvars.copy_context().run, self.ask, question="late")
            late.append(threading.Thread(target=work, daemon=True))
            late[-1].start()
            return answer

    class Waits(Asks):
        def forward(self, question: str) -> Any:
            release.set()
            late[0].join(30)
            return self.ask(question=question)

    lm = scripted(reply)
    for program in (LeavesBehind(), Waits()):
        assert counts(roll(lm, example, program)[0].usage) == [(1, 0, 5)]
    assert not late[0].is_alive()
    assert (capfd.readouterr().err, caplog.records) == ("", [])


def call(lm: dspy.LM, executor: Executor | None = None, **options: Any) -> Answer:
    async def main() -> Answer:
        slots = Slots((executor or Threads()).start(2), Fixed(2))
        try:
            signature, inputs = dspy.Signature("question -> answer"), {"question": "why"}
            job = CallJob(signature, inputs, lm=lm, adapter=dspy.ChatAdapter(), **options)
            return await slots.call(job, (0,))
        finally:
            await slots.close()

    return asyncio.run(main())


def test_a_call_returns_the_prediction_in_its_role_at_its_temperature(scripted):
    lm = scripted(lambda *_: "because")
    answer = call(lm, role="reflector", temperature=0.7)
    assert answer.outcome.answer == "because"
    assert [(row.role, row.calls) for row in answer.usage] == [("reflector", 1)]
    assert lm.engine.requests[0].config.temperature == 0.7


@both_executors
def test_a_call_that_takes_too_long_has_failed(scripted, executor):
    never = threading.Event()
    answer = call(scripted(lambda *_: never.wait(30) or "late"), executor, seconds=0.2)
    never.set()
    assert answer.outcome.error.startswith("RolloutTimeoutError: it took longer than 0.2 seconds")
    assert counts(answer.usage) == [(1, 1, 0)]


def test_waits_of_several_threads_move_a_time_limit_once() -> None:
    async def waits() -> None:
        attempt = _attempt.attempt_here()
        for _ in range(5):
            attempt.waits(0.2)
        await asyncio.sleep(60)

    async def main() -> None:
        limited = asyncio.ensure_future(_attempt.run_within(0.05, waits))
        tasks = {limited, asyncio.ensure_future(asyncio.sleep(0.8))}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert limited in done
        with pytest.raises(RolloutTimeoutError):
            await limited

    asyncio.run(main())


def test_a_call_has_the_time_limit_of_a_rollout() -> None:
    assert CallJob(dspy.Signature("a -> b"), {}).seconds == Validation().rollout_seconds


def test_an_answer_that_does_not_parse_is_asked_for_once_more_and_then_failed(scripted):
    # ChatAdapter itself asks again in JSON.
    second = call(scripted(lambda prompt, attempt: "no\0" if attempt <= 2 else "because"))
    assert second.outcome.answer == "because"
    assert second.usage[0].calls == 3
    failed = call(scripted(lambda *_: "no\0"))
    assert failed.outcome.error.startswith("AdapterParseError")
    assert failed.usage[0].calls == 4
