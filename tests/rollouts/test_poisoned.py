"""Whatever a program or metric raises, the rollout has failed; what is given up stays given up."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMRateLimitError

from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    Asyncio,
    Executor,
    Fixed,
    RolloutJob,
    Slots,
    Threads,
    patient,
    run_rollout,
)


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
EXAMPLE = dspy.Example(question="q").with_inputs("question")


class Program(dspy.Module):
    def __init__(self, act: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.act = act

    def forward(self, question: str) -> Any:
        self.act()
        return dspy.Prediction(answer="42")

    async def aforward(self, question: str) -> Any:
        return self.forward(question)


class InTasks(Program):
    """Raises in a task of its own."""

    async def aforward(self, question: str) -> Any:
        async def act() -> None:
            self.act()

        await asyncio.gather(act())


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def right(*_: Any) -> float:
    return 1.0


def roll(
    executor: Executor, program: Any, metric: Any = right, count: int = 2, **options: Any
) -> list[Rollout]:
    async def main() -> list[Rollout]:
        slots = Slots(executor.start(2), Fixed(2))
        jobs = [RolloutJob(program, EXAMPLE, str(n), metric, -1.0, **options) for n in range(count)]
        try:
            async with asyncio.timeout(20):
                return await asyncio.gather(*(slots.rollout(job, (0,)) for job in jobs))
        finally:
            await slots.close()

    return asyncio.run(main())


both_executors = pytest.mark.parametrize(
    "executor", [Threads(), Asyncio()], ids=["threads", "asyncio"]
)


@both_executors
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("place", ["program", "metric", "tasks"])
def test_what_would_end_a_process_is_a_failed_rollout(
    place: str, poison: str, executor: Executor
) -> None:
    def act(*_: Any) -> Any:
        raise POISONS[poison]()

    kind = InTasks if place == "tasks" else Program
    rollouts = roll(executor, Program(), act) if place == "metric" else roll(executor, kind(act))
    # A coroutine cannot raise StopIteration: Python makes another error of it.
    names = (poison, "RuntimeError") if poison == "StopIteration" else (poison,)
    for rollout in rollouts:
        assert rollout.score == -1.0
        assert rollout.failed_in == ("metric" if place == "metric" else "program")
        assert str(rollout.error).startswith(names)


def test_a_program_that_cancels_its_own_task_is_a_failed_rollout() -> None:
    class Cancels(Program):
        async def aforward(self, question: str) -> Any:
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # a task runs it
            await asyncio.sleep(0)

    for rollout in roll(Asyncio(), Cancels()):
        assert rollout.score == -1.0
        assert str(rollout.error).startswith("CancelledError")


def test_a_metric_whose_number_raises_is_a_failed_rollout() -> None:
    class Poisoned:
        def __float__(self) -> float:
            sys.exit()

    assert roll(Threads(), Program(), lambda *_: Poisoned(), 1)[0].failed_in == "metric"


def test_an_interrupt_of_the_main_thread_is_the_users() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rollout(RolloutJob(Program(interrupt), EXAMPLE, "id", right))


@both_executors
@pytest.mark.parametrize("place", ["program", "metric"])
def test_a_rollout_that_takes_too_long_has_failed_and_others_take_its_place(
    executor: Executor, place: str, never: threading.Event
) -> None:
    def hang(*_: Any) -> Any:
        never.wait()

    # More than there are threads: each that hangs leaves its place to another.
    options = {"count": 5 if isinstance(executor, Threads) else 2, "seconds": 0.2}
    if place == "program":
        rollouts = roll(executor, Program(hang), **options)
    else:
        rollouts = roll(executor, Program(), hang, **options)
    for rollout in rollouts:
        assert (rollout.score, rollout.failed_in) == (-1.0, place)
        assert "took longer than 0.2 seconds" in str(rollout.error)
        assert "Validation(rollout_seconds=…)" in str(rollout.error)


def test_only_the_rollout_that_blocks_the_loop_has_failed(never: threading.Event) -> None:
    blocks: list[int] = []

    class FirstBlocks(Program):
        async def aforward(self, question: str) -> Any:
            if not blocks:
                blocks.append(1)
                never.wait()
            return dspy.Prediction(answer="42")

    rollouts = roll(Asyncio(), FirstBlocks(), seconds=0.3)
    assert sorted(rollout.score for rollout in rollouts) == [-1.0, 1.0]


def test_a_wait_for_a_full_service_is_no_time_of_the_rollout(scripted: Any) -> None:
    full = LMRateLimitError("full", status=429, retry_after=0.6)
    lm = scripted(lambda prompt, attempt: full if attempt == 1 else "42")
    with dspy.context(lm=patient(lm)):
        program = dspy.Predict("question -> answer")
        (rollout,) = roll(Threads(), program, count=1, seconds=0.5)
    assert rollout.error is None
