"""Telling the session whose worker runs this code that a service asked for fewer requests."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from combee_dspy.rollouts._base import current_session

__all__ = ["LONGEST_WAIT", "Pressed", "tell_pressure"]

LONGEST_WAIT = 120.0
"""Seconds before another attempt at most, whatever a service asks for: who asks for more is down, and not coming back
within a run. Attempts are bounded as well."""


@runtime_checkable
class Pressed(Protocol):
    """A session that wants to hear of rejected requests. Thread-safe."""

    def pressed(self, retry_after: float | None) -> None:
        """Note that a request of the task that calls was rejected with "too many requests"."""
        ...


def tell_pressure(retry_after: float | None) -> None:
    """Tell the session of this worker that a service rejected a request (HTTP 429).

    To be called once per rejected attempt, from the thread (or the async task)
    that runs the rollout: who rejected is told apart by it. Outside of a
    session, and in one that does not want to know, nothing happens. Never raises
    for what a service sent.

    Args:
        retry_after: Seconds that the service asked to wait, ``None`` where it named none.
    """
    session = current_session()
    if isinstance(session, Pressed):
        session.pressed(retry_after)
