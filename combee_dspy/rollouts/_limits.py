"""How many effects may be in flight: a fixed number, or one that finds a service's capacity."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Literal

__all__ = ["Fixed", "Limit", "Outcome"]

Outcome = Literal["ok", "failed", "cancelled"]
"""How an effect ended: with a result, with an error, or taken back."""


class Limit(ABC):
    """Says how many effects may be in flight. Lives on one event loop.

    Attributes:
        current: How many may be in flight now, at least 1.
        held_until: No dispatch before this time of the loop's clock.
        on_change: Called with the new limit and the reason.
    """

    current: int = 1
    held_until: float = 0.0
    on_change: Callable[[int, str], None] | None = None

    def started(self, now: float) -> None:
        """Hear that an effect was dispatched."""

    def ended(self, lane: str, seconds: float, outcome: Outcome, now: float) -> None:
        """Hear that an effect ended.

        Args:
            lane: Kind of effect. Seconds are compared within a lane only.
            seconds: How long it was in flight.
            outcome: ``"failed"``: its seconds say nothing; ``"cancelled"``: it says nothing.
            now: The time.
        """

    def rejected(self, retry_after: float | None, now: float, who: object = None) -> None:
        """Hear that the service answered "too many requests" to an effect in flight.

        Args:
            retry_after: Seconds that it asked to wait, ``None`` where it named none.
            now: The time.
            who: Tells effects apart; ``None`` where that is not known.
        """


class Fixed(Limit):
    """The same number at all times: what a user states who knows the service.

    Args:
        slots: Effects in flight at once, at least 1.
    """

    def __init__(self, slots: int) -> None:
        self.current = slots
