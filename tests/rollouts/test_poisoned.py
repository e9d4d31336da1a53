"""Whatever program or metric raise, a rollout that failed comes of it; what is given up stays
so.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest

from combee_dspy.records import Rollout
from combee_dspy.rollouts import Asyncio, Executor, Fixed, RolloutJob, Slots, Threads, run_rollout


class TextRaisesError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


POISONS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "TextRaisesError": TextRaisesError,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
}


class Program(dspy.Module):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.act = act

    def forward(self, question: str) -> Any:
        self.act()
        return dspy.Prediction(answer="42")

    async def aforward(self, question: str) -> Any:
        self.act()
        return dspy.Prediction(answer="42")


class InTasks(Program):
    """Raises in a task of its own."""

    async def aforward(self, question: str) -> Any:
        async def acts() -> None:
            self.act()

        await asyncio.gather(acts())


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def right(*_: Any) -> float:
    return 1.0


def raises(poison: str) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise POISONS[poison]()

    return act


def carried_out(
    executor: Executor, program: Any, metric: Any = right, count: int = 2, **given: Any
) -> list[Rollout]:
    async def main() -> list[Rollout]:
        slots = Slots(executor.start(2), Fixed(2))
        try:
            example = dspy.Example(question="q").with_inputs("question")
            jobs = [
                RolloutJob(program, example, str(n), metric, -1.0, **given) for n in range(count)
            ]
            async with asyncio.timeout(20):
                return await asyncio.gather(*(slots.rollout(job, (0,)) for job in jobs))
        finally:
            await slots.close()

    return asyncio.run(main())


@pytest.mark.parametrize("executor", [Threads(), Asyncio()], ids=["threads", "asyncio"])
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("place", ["program", "metric", "tasks"])
def test_what_would_end_a_process_is_a_failed_rollout(
    place: str, poison: str, executor: Executor
) -> None:
    act = raises(poison)
    if place == "metric":
        rollouts = carried_out(executor, Program(lambda: None), act)
    else:
        rollouts = carried_out(executor, (InTasks if place == "tasks" else Program)(act))
    for rollout in rollouts:
        assert rollout.score == -1.0
        assert rollout.failed_in == ("metric" if place == "metric" else "program")
        # A coroutine cannot raise StopIteration: Python makes another error of it.
        names = (poison, "RuntimeError") if poison == "StopIteration" else (poison,)
        assert str(rollout.error).startswith(names)


def test_a_program_that_cancels_its_own_task_is_a_failed_rollout() -> None:
    class Cancels(Program):
        async def aforward(self, question: str) -> Any:
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # a task runs it
            await asyncio.sleep(0)

    for rollout in carried_out(Asyncio(), Cancels(lambda: None)):
        assert rollout.score == -1.0
        assert str(rollout.error).startswith("CancelledError")


def test_a_metric_whose_number_raises_is_a_failed_rollout() -> None:
    class Poisoned:
        def __float__(self) -> float:
            sys.exit()

    (rollout,) = carried_out(Threads(), Program(lambda: None), lambda *_: Poisoned(), 1)
    assert rollout.failed_in == "metric"


def test_an_interrupt_of_the_main_thread_is_the_users() -> None:
    example = dspy.Example(question="q").with_inputs("question")
    with pytest.raises(KeyboardInterrupt):
        run_rollout(RolloutJob(Program(raises("KeyboardInterrupt")), example, "id", right))


@pytest.mark.parametrize("executor", [Threads(), Asyncio()], ids=["threads", "asyncio"])
@pytest.mark.parametrize("place", ["program", "metric"])
def test_a_rollout_that_takes_longer_than_it_may_has_failed_and_others_take_its_place(
    executor: Executor, place: str, never: threading.Event
) -> None:
    def hang(*_: Any) -> Any:
        never.wait()

    # More than there are threads: each that hangs leaves its place to another.
    given = {"count": 5 if isinstance(executor, Threads) else 2, "seconds": 0.2}
    if place == "program":
        rollouts = carried_out(executor, Program(hang), **given)
    else:
        rollouts = carried_out(executor, Program(lambda: None), hang, **given)
    for rollout in rollouts:
        assert rollout.score == -1.0
        assert "took longer than 0.2 seconds" in str(rollout.error)
        assert "Validation(rollout_seconds=…)" in str(rollout.error)
    assert {one.failed_in for one in rollouts} == {place}


def test_a_rollout_that_holds_up_the_loop_is_blamed_alone(never: threading.Event) -> None:
    class Both(Program):
        async def aforward(self, question: str) -> Any:
            if not begun:
                begun.append(question)
                never.wait()
            return dspy.Prediction(answer="42")

    begun: list[str] = []
    rollouts = carried_out(Asyncio(), Both(lambda: None), seconds=0.3)
    assert sorted(one.score for one in rollouts) == [-1.0, 1.0]


def test_a_wait_for_a_full_service_is_no_time_of_the_rollout(scripted: Any) -> None:
    from dspy.utils.exceptions import LMRateLimitError

    from combee_dspy.rollouts import patient

    def reply(prompt: str, attempt: int) -> Any:
        return LMRateLimitError("full", status=429, retry_after=0.6) if attempt == 1 else "42"

    class Asks(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            return self.ask(question=question)

    with dspy.context(lm=patient(scripted(reply))):
        (rollout,) = carried_out(Threads(), Asks(), count=1, seconds=0.5)
    assert rollout.error is None
