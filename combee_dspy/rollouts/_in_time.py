"""Holds an attempt at a rollout to its time, and tells who has cancelled it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from combee_dspy.records import Rollout, described
from combee_dspy.rollouts._jobs import RolloutJob, RolloutTimeoutError
from combee_dspy.rollouts._patient import SURROUNDINGS, Surroundings


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
    here = SURROUNDINGS.get()
    if here is None:  # nobody counts the attempts of a session that is used alone
        SURROUNDINGS.set(here := Surroundings())
    try:
        return await _in_time(job, here, run)
    except asyncio.CancelledError as error:
        if is_ours(error):
            raise
        return _failed_here(job, here, error)


async def _in_time(
    job: RolloutJob, here: Surroundings, run: Callable[[], Awaitable[Rollout]]
) -> Rollout:
    if job.seconds is None:
        return await run()
    loop = asyncio.get_running_loop()

    def move(seconds: float) -> None:
        when = limit.when()
        with suppress(RuntimeError):  # it has ended meanwhile
            limit.reschedule((loop.time() if when is None else when) + seconds)

    def postpone(seconds: float) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(move, seconds)

    limit = asyncio.timeout(job.seconds)
    try:
        async with limit:
            here.waits = postpone
            return await run()
    except TimeoutError:
        if not limit.expired():
            raise
    return _failed_here(job, here, RolloutTimeoutError(job.seconds))


def _failed_here(job: RolloutJob, here: Surroundings, error: BaseException) -> Rollout:
    """Give an attempt up, and return the rollout as it failed with an error by now."""
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
