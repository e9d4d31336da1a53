"""What limits say of calls that fail: whether one may be sent again, and what it may have cost."""

from __future__ import annotations

from contextvars import ContextVar

from combee_dspy.records import CallUsage

__all__ = ["REPEATS", "Repeats", "may_repeat", "unbooked"]


class Repeats:
    """What one effect asks before it sends a call again, and hears of answers that never came.

    This one limits nothing. From any thread.
    """

    def allow(self, calls: int = 1) -> bool:
        """Return whether so many calls that failed may be sent again."""
        return True

    async def book(self, usage: tuple[CallUsage, ...], reason: str) -> bool:
        """Put what an attempt that failed has cost into the books before the next one is made.

        Returns:
            Whether there are any: it is then no part of what the effect has cost in the end.
        """
        return False

    def lose(self) -> None:
        """Note that a call got no answer that could be read, though its service may have charged
        for it.
        """


REPEATS: ContextVar[Repeats] = ContextVar("combee_repeats", default=Repeats())  # noqa: B039 - it has no state
"""That of the effect that is carried out here."""


def may_repeat(usage: tuple[CallUsage, ...] | None = None) -> bool:
    """Return whether an attempt at an effect that has cost so much may be made again: it sends its
    calls anew, those that it repeated itself left out.

    Args:
        usage: ``None`` where the books have it, and what the effect was granted pays for the next.
    """
    if usage is None:
        return REPEATS.get().allow(0)
    calls = sum(max(row.calls - row.errors, min(row.calls, 1)) for row in usage)
    return REPEATS.get().allow(max(1, calls))


async def unbooked(
    usage: tuple[CallUsage, ...], reason: str, *, goes_on: bool
) -> list[tuple[CallUsage, ...]]:
    """Return what an attempt that failed has cost, unless it is put into the books here, before the
    next attempt at the effect.
    """
    return [] if goes_on and await REPEATS.get().book(usage, reason) else [usage]
