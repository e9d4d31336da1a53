"""How many effects may be in flight: the contract, and the number that never changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Outcome = Literal["ok", "failed", "cancelled"]
"""How an effect ended: with a result, with an error (its seconds say nothing), or taken back (it says nothing)."""


class Dispatch(NamedTuple):
    """What is known of an effect in flight when it began.

    Attributes:
        lane: Kind of effect: seconds are compared within a lane only.
        began: When it began.
        level: How many could be in flight then.
        era: The limit's era then; what began in an earlier one says nothing about this one.
    """

    lane: str
    began: float
    level: int
    era: int = 0


class Limit:
    """Says how many effects may be in flight: as it stands, the same number at all times. Lives on one event loop.

    Times are of one monotonic clock. Whatever it says changes when effects run, never what they return.

    Attributes:
        current: How many may be in flight now, at least 1.
        held_until: No dispatch before this time.
        on_change: Called with the new limit and the reason after each change.
    """

    def __init__(self, current: int) -> None:
        self.current = current
        self.held_until = 0.0
        self.on_change: Callable[[int, str], None] | None = None

    def started(self, lane: str, now: float) -> Dispatch:
        """Hear that an effect goes to the service; return what :meth:`ended` is to be given."""
        return Dispatch(lane, now, self.current)

    def ended(self, dispatch: Dispatch, outcome: Outcome, now: float) -> None:
        """Hear that an effect ended."""

    def rejected(self, retry_after: float | None, now: float, who: object = None) -> None:
        """Hear that the service answered "too many requests" to an effect in flight.

        Args:
            retry_after: Seconds that it asked to wait, ``None`` where it named none.
            now: The time.
            who: Tells effects apart; ``None`` where that is not known.
        """


class Fixed(Limit):
    """What a user states who knows the service. A refusal is the business of whoever repeats the call.

    Args:
        slots: Effects in flight at once, at least 1.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
