"""An effect again, where the service failed in passing or is full."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from combee_dspy.rollouts._jobs import InfrastructureFaultError

T = TypeVar("T")

LONGEST_WAIT = 120.0
"""Seconds before another attempt at most, whatever a service asks for: who asks for more is down, and not coming back
within a run. Attempts are bounded as well."""

PATIENCE = 600.0
"""Seconds that one call, or one rollout, is kept waiting by a service that rejects it."""

_LONGEST_PAUSE = 60.0


def pause_after(retry_after: float | None, count: int) -> float:
    """Return the seconds until the next attempt after ``count`` rejections: 1, 2, 4, …, or what was asked for."""
    asked = min(2.0 ** min(count - 1, 6), _LONGEST_PAUSE) if retry_after is None else min(retry_after, LONGEST_WAIT)
    # A service that asks for no time at all must not be asked without end in no time.
    return max(asked, min(0.001 * 2.0 ** min(count, 10), 0.1))


async def again(
    attempt: Callable[[], Awaitable[T]],
    attempts: int,
    pause: Callable[[float], Awaitable[None]],
) -> T:
    """Carry out an effect, again where an attempt failed in passing.

    A rejection waits for as long as the service asks and is no attempt; all of them together have :data:`PATIENCE`
    seconds. Other faults are tried again after random pauses that grow.

    Args:
        attempt: One attempt.
        attempts: Attempts that may end with a fault that is no rejection, at least 1.
        pause: Waits so many seconds.

    Raises:
        InfrastructureFaultError: The last attempt's.
    """
    started = time.monotonic()
    try:
        return await attempt()  # nearly always the only one
    except InfrastructureFaultError as fault:
        pending = [fault]
    faults = rejections = 0
    after_fault = tenacity.wait_random_exponential(multiplier=0.2, max=10)
    over = False

    async def one() -> T:
        if pending:
            raise pending.pop()
        return await attempt()

    def wait(state: tenacity.RetryCallState) -> float:
        # tenacity asks for the pause first, and then whether to stop: once each per attempt.
        nonlocal faults, rejections, over
        fault = state.outcome.exception() if state.outcome is not None else None
        if isinstance(fault, InfrastructureFaultError) and fault.rejected:
            rejections += 1
            seconds = pause_after(fault.retry_after, rejections)
            over = time.monotonic() + seconds > started + PATIENCE
            return seconds
        faults += 1
        over = faults >= attempts
        return after_fault(state)

    def may_pass(error: BaseException) -> bool:
        return isinstance(error, InfrastructureFaultError) and error.retryable

    retry = tenacity.retry_if_exception(may_pass)
    retrying = tenacity.AsyncRetrying(stop=lambda state: over, wait=wait, retry=retry, sleep=pause, reraise=True)
    return await retrying(one)
