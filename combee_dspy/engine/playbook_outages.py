"""When failing calls mean that a service is down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["Outages"]

_IN_A_ROW = 3
_UNREAD = "AdapterParseError"


class Outages:
    """Tells an outage from answers that nobody could read. Used from one thread."""

    def __init__(self) -> None:
        self._lone: Counter[str] = Counter()

    def ends(self, where: str, failed: Sequence[str], asked: int) -> bool:
        """Take what became of one minibatch's calls of a kind, and return whether their service is down.

        It is where none of several calls was answered. A lone call says little: it takes three
        minibatches in a row. A service whose answers do not parse is not down.

        Args:
            where: The kind.
            failed: Error of each call that failed for good, its type in front.
            asked: How many calls there were.
        """
        if not asked:
            return False
        down = sum(not error.startswith(_UNREAD) for error in failed) == asked
        self._lone[where] = self._lone[where] + 1 if down else 0
        return down and (asked > 1 or self._lone[where] >= _IN_A_ROW)
