"""Holds an attempt at a rollout to its time, and tells who has cancelled it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from combee_dspy.records import FailedCall, Rollout, described
from combee_dspy.rollouts._jobs import Answer, CallJob, RolloutJob, RolloutTimeoutError
from combee_dspy.rollouts._patient import SURROUNDINGS, Surroundings

T = TypeVar("T")


def is_ours(error: BaseException) -> bool:
    """Return whether an error is a cancellation of the task that runs here, and no error of the
    program.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def run_in_time(job: RolloutJob, run: Callable[[], Awaitable[Rollout]]) -> Rollout:
    """Carry out an attempt at a rollout within the seconds of its job; it has failed where it takes
    longer.

    What it hangs in is cancelled, its result is not waited for, and its later LM calls are refused.
    So it is where a program cancels the task that it runs in itself.
    """
    try:
        return await run_within(job.seconds, run)
    except RolloutTimeoutError as error:
        return _failed_here(job, error)
    except asyncio.CancelledError as error:
        if is_ours(error):
            raise
        return _failed_here(job, error)


async def call_in_time(job: CallJob, run: Callable[[], Awaitable[Answer]]) -> Answer:
    """Carry out an attempt at an LM call within the seconds of its job; it has failed where it
    takes longer.
    """
    try:
        return await run_within(job.seconds, run)
    except RolloutTimeoutError as error:
        return Answer(FailedCall(described(error)), error.usage, job.seconds or 0.0)


async def run_within(seconds: float | None, run: Callable[[], Awaitable[T]]) -> T:
    """Carry out what an attempt at an effect does, within so many seconds if any are named; waits
    for a service that is full are left out.

    Raises:
        RolloutTimeoutError: It took longer, and was given up.
    """
    if seconds is None:
        return await run()
    here, loop = _surroundings(), asyncio.get_running_loop()

    def move(more: float) -> None:
        when = limit.when()
        with suppress(RuntimeError):  # it has ended meanwhile
            limit.reschedule((loop.time() if when is None else when) + more)

    def postpone(more: float) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(move, more)

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            here.waits = postpone
            return await run()
    except TimeoutError:
        if not limit.expired():
            raise
        raise RolloutTimeoutError(seconds, here.give_up()) from None


def _surroundings() -> Surroundings:
    here = SURROUNDINGS.get()
    if here is None:  # nobody counts the attempts of a session that is used alone
        SURROUNDINGS.set(here := Surroundings())
    return here


def _failed_here(job: RolloutJob, error: BaseException) -> Rollout:
    """Give an attempt up, and return the rollout as it failed with an error by now."""
    here = _surroundings()
    here.give_up()
    if here.failed is not None:
        return here.failed(error)
    seconds = job.seconds or 0.0
    return Rollout(
        job.example_id,
        job.failure_score,
        error=described(error),
        failed_in="program",
        seconds=seconds,
    )
