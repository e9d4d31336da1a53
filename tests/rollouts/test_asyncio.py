"""Rollouts and calls awaited on the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import dspy
import pytest

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.records import Rollout
from combee_dspy.rollouts import Asyncio, CallJob, Fixed, RolloutJob, Slots, Threads

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


class Program(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        raise AssertionError("the program is awaited")

    async def aforward(self, question: str) -> Any:
        return await self.ask.acall(question=question)


def rollouts(
    scripted: Any, program: Any, metric: Any, count: int = 3, limit: int = 8
) -> list[Rollout]:
    async def main() -> list[Rollout]:
        with dspy.context(lm=scripted()):
            slots = Slots(Asyncio().start(4), Fixed(limit))
            try:
                examples = [
                    dspy.Example(question=str(n)).with_inputs("question") for n in range(count)
                ]
                jobs = [
                    RolloutJob(program, example, example.question, metric, -1.0)
                    for example in examples
                ]
                return await asyncio.gather(*(slots.rollout(job, (0,)) for job in jobs))
            finally:
                await slots.close()

    return asyncio.run(main())


def test_programs_are_awaited_on_the_loop_and_metrics_run_in_threads(scripted):
    where: list[Any] = []

    def metric(gold: Any, pred: Any, *rest: Any) -> float:
        where.append(threading.current_thread())
        return float(pred.answer == "42")

    results = rollouts(scripted, Program(), metric)

    assert [rollout.score for rollout in results] == [1.0] * 3
    assert [rollout.example_id for rollout in results] == ["0", "1", "2"]
    assert all(len(rollout.calls) == 1 and rollout.usage[0].calls == 1 for rollout in results)
    assert threading.main_thread() not in where


def test_many_rollouts_wait_together_with_few_threads(scripted):
    class Together(Program):
        waiting = 0

        async def aforward(self, question: str) -> Any:
            type(self).waiting += 1
            while self.waiting < 50:
                await asyncio.sleep(0)
            return dspy.Prediction(answer="42")

    async def metric(*_: Any) -> float:
        return 1.0

    assert len(rollouts(scripted, Together(), metric, 50, 64)) == 50


def test_cancelled_rollout_cancels_what_it_awaits(scripted):
    ended: list[str] = []

    class Endless(Program):
        async def aforward(self, question: str) -> Any:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append("cancelled")

    async def main() -> None:
        slots = Slots(Asyncio().start(1), Fixed(1))
        example = dspy.Example(question="q").with_inputs("question")
        task = asyncio.ensure_future(slots.rollout(RolloutJob(Endless(), example, "id", len), (0,)))
        while not slots._flying:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slots._flying == 0
        await slots.close()

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_calls_are_awaited_and_work_keeps_its_context(scripted):
    async def main() -> Any:
        slots = Slots(Asyncio().start(2), Fixed(2))
        VARIABLE.set("mine")
        try:
            job = CallJob(dspy.Signature("question -> answer"), {"question": "q"}, lm=scripted())
            return await slots.call(job, (0,)), await slots.run(VARIABLE.get, (0,))
        finally:
            await slots.close()

    answer, value = asyncio.run(main())
    assert answer.outcome.answer == "42"
    assert answer.usage[0].role == "proposer"
    assert value == "mine"


def test_what_cannot_be_awaited_is_refused_before_anything_is_spent():
    class OnlySync(dspy.Module):
        def forward(self, question: str) -> Any:
            return None

    class Legacy(dspy.BaseLM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            return None

    with pytest.raises(ArgumentTypeError, match="aforward"):
        Asyncio().check_program(OnlySync(), len)
    with dspy.context(lm=Legacy("legacy")), pytest.raises(ArgumentTypeError, match="Legacy"):
        Asyncio().check_program(Program(), len)
    Asyncio().check_program(Program(), len)
    Threads().check_program(OnlySync(), len)
