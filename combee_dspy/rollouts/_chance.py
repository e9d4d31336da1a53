"""Tells refusals by chance, however many calls are in flight, from those of a full service."""

from __future__ import annotations

import math
from typing import Literal

Finding = Literal["by chance", "too many"]

# What is left in a window after a cut: one refusal may be a straggler, and where more calls are
# refused than answered, waiting is right whatever the cause.
_FEW, _MOST = 2, 1.5
_WINDOW, _LONGER = 16, 3
# An alarm once in some thousand windows of calls that are refused by chance alone.
_SIGMAS = 3.5


class Chance:
    """Compares refusals for each call answered before and after the limit was lowered, and before
    and after it rose.

    A service that is full serves C calls. Of L in flight the other L − C are refused, again and
    again, so refusals for each answer grow with L − C and are none at C. Refusals by chance are as
    many at every L. So:

    - After a cut, a window that still has refusals, at most 1.5 for each answer, suggests chance:
      the limit is to return to where it was. This is a guess, and what follows tests it.
    - From then on a window with clearly more refusals than by chance (3.5 standard deviations of a
      geometric number of repetitions) says that there are too many in flight, or that chance has
      changed: the limit is to be lowered so far that a new window can tell.

    A window holds as many answers as the limit, 16 at least; three times as many where a single
    refusal tells nothing.

    Attributes:
        odds: Refusals for each answer that come by chance; ``None`` where none are known to.
        watching: Whether a window after a cut is under way: until it is full nothing else is to
            change the limit.
    """

    def __init__(self) -> None:
        self.odds: float | None = None
        self.watching = False
        self._answers = self._refusals = 0
        self._size, self._opened = _WINDOW, 1
        self._counted = 0

    def cut(self, limit: int) -> None:
        """Note that the limit was lowered for refusals, and that what was above it has ended."""
        self.watching = True
        self._open(limit)

    def refused(self) -> bool:
        """Note a refusal; return whether to lower the limit for it."""
        self._refusals += 1
        if self.watching and self._refusals > _MOST * self._size:
            self.watching = False
        return not self.watching and self.odds is None

    def answered(self, calls: int, limit: int) -> Finding | None:
        """Note answers; return what a window shows once it is full."""
        self._answers += calls
        if self._answers < self._size or not (self.watching or self.odds is not None):
            return None
        if self.odds is None and self._refusals == 1 and self._answers < _LONGER * self._size:
            return None
        # Calls that a growing limit let begin have met their refusals by now, and not their answer.
        answers, refusals = self._answers + max(0, limit - self._opened), self._refusals
        self._open(limit)
        if self.odds is not None:
            return self._compare(self.odds, answers, refusals)
        self.watching = False
        odds = refusals / answers
        if refusals < _FEW or odds > _MOST:
            return None
        self.odds, self._counted = odds, answers
        return "by chance"

    def _open(self, limit: int) -> None:
        """Open a window. Its size stays, so that a limit that grows does not keep it open."""
        self._answers = self._refusals = 0
        self._size, self._opened = max(_WINDOW, limit), limit

    def _compare(self, usual: float, answers: int, refusals: int) -> Finding | None:
        # Both counts are random: those of this window, and those that tell the usual odds.
        variance = usual * (1 + usual) * answers * (1 + answers / self._counted)
        if refusals > usual * answers + _SIGMAS * math.sqrt(variance) + _FEW:
            self.odds = None
            return "too many"
        self._counted += answers
        usual += (refusals - usual * answers) / self._counted
        self.odds = usual if usual * answers >= 1 else None  # below, they have ended
        return None
