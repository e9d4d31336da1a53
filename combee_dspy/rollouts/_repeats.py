"""Whether a budget lets a call that failed be sent again: asked by whoever repeats one."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from combee_dspy.records import CallUsage

__all__ = ["MAY_REPEAT", "may_repeat"]

MAY_REPEAT: ContextVar[Callable[[int], bool]] = ContextVar(
    "combee_may_repeat", default=lambda calls: True
)
"""Says of the effect that is carried out here whether the budget lets so many calls that failed be
sent again.
"""


def may_repeat(usage: tuple[CallUsage, ...]) -> bool:
    """Return whether an attempt at an effect that has cost so much may be made again: it sends its
    calls anew, those that it repeated itself left out.
    """
    calls = sum(max(row.calls - row.errors, min(row.calls, 1)) for row in usage)
    return MAY_REPEAT.get()(max(1, calls))
