"""A rollout again, where the service failed in passing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import tenacity

from combee_dspy.records import Rollout
from combee_dspy.rollouts._patient import patient_rules
from combee_dspy.rollouts._run import InfrastructureFaultError

__all__ = ["ATTEMPTS", "atry_rollout", "try_rollout"]

ATTEMPTS = 3
"""How often a rollout is tried at most where the service fails in passing; one that is full is waited for."""


def try_rollout(run: Callable[..., Rollout], *args: Any) -> Rollout:
    """Carry out a rollout, up to :data:`ATTEMPTS` times (see :func:`combee_dspy.rollouts.patient_rules`).

    Args:
        run: :func:`combee_dspy.rollouts.run_rollout`, or a session's own.
        *args: Its arguments. With a meter among them, every attempt is counted in it.

    Returns:
        The rollout, or the failed one where nobody can tell whether the service is to blame.

    Raises:
        InfrastructureFaultError: The service is to blame.
    """
    started = time.monotonic()
    try:
        return run(*args)
    except InfrastructureFaultError as fault:
        # Most rollouts need no more than this attempt. Where one does, what counts attempts is made only now: the
        # first time that it asks, it gets this attempt's fault instead of another attempt.
        first = [fault]

    def again() -> Rollout:
        if first:
            raise first.pop()
        return run(*args)

    try:
        return tenacity.Retrying(**patient_rules(ATTEMPTS, _may_pass, started))(again)
    except InfrastructureFaultError as fault:
        return _failed(fault)


async def atry_rollout(run: Callable[..., Awaitable[Rollout]], *args: Any) -> Rollout:
    """Do the same with :func:`combee_dspy.rollouts.arun_rollout`, without blocking the event loop.

    Args:
        run: A coroutine function.
        *args: Its arguments.

    Returns:
        As :func:`try_rollout`.

    Raises:
        InfrastructureFaultError: The service is to blame.
    """
    started = time.monotonic()
    try:
        return await run(*args)
    except InfrastructureFaultError as fault:
        # See try_rollout.
        first = [fault]

    async def again() -> Rollout:
        if first:
            raise first.pop()
        return await run(*args)

    try:
        return await tenacity.AsyncRetrying(**patient_rules(ATTEMPTS, _may_pass, started))(again)
    except InfrastructureFaultError as fault:
        return _failed(fault)


def _failed(fault: InfrastructureFaultError) -> Rollout:
    if fault.rollout is None:
        raise fault
    return fault.rollout


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, InfrastructureFaultError) and error.retryable
