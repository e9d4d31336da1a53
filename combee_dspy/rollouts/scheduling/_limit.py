"""How many tasks may be in flight: the contract, and the limit that never moves."""

from __future__ import annotations

from typing import Literal, Protocol

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["ConcurrencyLimit", "FixedLimit", "Outcome"]

Outcome = Literal["ok", "failed", "cancelled"]
"""How a task in flight ended: with a result, with an exception, or taken back."""


class ConcurrencyLimit(Protocol):
    """Says how many tasks a service can take now. Thread-safe.

    ``current`` and ``hold`` are asked at every dispatch, under the scheduler's
    lock: they return at once and call nothing of the scheduler. A limit may
    have an attribute ``reason``, a text: why it last changed, told with the change.
    """

    def current(self) -> int:
        """Return how many tasks may be in flight now. Less than 1 counts as 1: a run must end."""
        ...

    def started(self, lane: str) -> None:
        """Hear that a task of this lane goes to the service."""
        ...

    def finished(self, lane: str, seconds: float, outcome: Outcome) -> None:
        """Hear that a task of this lane has ended, after this many seconds in its worker."""
        ...

    def rejected(self, retry_after: float | None) -> None:
        """Hear that the service refused a call of a task in flight (429), and for how many seconds it asked."""
        ...

    def hold(self) -> float:
        """Return the seconds until the next dispatch is allowed, 0 normally."""
        ...


class FixedLimit:
    """The same number at all times: what a user states who knows the service.

    A refusal with ``Retry-After`` is the business of whoever repeats the call.

    Args:
        slots: Tasks in flight at once, at least 1.

    Raises:
        ArgumentValueError: ``slots`` is below 1.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ArgumentValueError("slots", slots, "is below 1", "Give at least one slot.")
        self.slots = slots

    def current(self) -> int:
        """Return the number given."""
        return self.slots

    def started(self, lane: str) -> None:
        """Do nothing."""

    def finished(self, lane: str, seconds: float, outcome: Outcome) -> None:
        """Do nothing."""

    def rejected(self, retry_after: float | None) -> None:
        """Do nothing."""

    def hold(self) -> float:
        """Return 0."""
        return 0.0

    def __repr__(self) -> str:
        return f"FixedLimit({self.slots})"
