"""What limits say of calls that fail: whether one may be sent again, and what it may have cost."""

from __future__ import annotations

from contextvars import ContextVar

from combee_dspy.records import CallUsage

__all__ = ["REPEATS", "Repeats", "may_repeat"]


class Repeats:
    """What one effect asks before it sends a call again, and hears of answers that never came.

    This one limits nothing. From any thread.
    """

    def allow(self, calls: int = 1) -> bool:
        """Return whether so many calls that failed may be sent again."""
        return True

    def lose(self) -> None:
        """Note that a call got no answer that could be read, though its service may have charged
        for it.
        """


REPEATS: ContextVar[Repeats] = ContextVar("combee_repeats", default=Repeats())  # noqa: B039 - it has no state
"""That of the effect that is carried out here."""


def may_repeat(usage: tuple[CallUsage, ...]) -> bool:
    """Return whether an attempt at an effect that has cost so much may be made again: it sends its
    calls anew, those that it repeated itself left out.
    """
    calls = sum(max(row.calls - row.errors, min(row.calls, 1)) for row in usage)
    return REPEATS.get().allow(max(1, calls))
