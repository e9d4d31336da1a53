"""Which components an update of a candidate edits."""

from __future__ import annotations

from collections.abc import Sequence

from gepa.proposer.reflective_mutation.base import ReflectionComponentSelector

from combee_dspy.search._candidates import Member

__all__ = ["Turns"]


class Turns:
    """Lets components take turns; a child goes on where its parents' turn was, as in GEPA.

    Args:
        names: The components.
        selects: ``"round_robin"``, ``"all"``, or the user's selector.
        members: The validated candidates, read when a turn is asked for.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        selects: str | ReflectionComponentSelector,
        members: Sequence[Member],
    ) -> None:
        self._names = names
        self._selects = selects
        self._members = members
        self._turns: dict[int, int] = {}

    def take(self, index: int) -> tuple[str, ...] | None:
        """Return what the next update of a candidate edits.

        ``None`` where the user's selector decides: that one reads the rollouts.
        """
        if not isinstance(self._selects, str):
            return None
        if self._selects == "all":
            return self._names
        turn = self.turn(index)
        self._turns[index] = turn + 1
        return (self._names[turn % len(self._names)],)

    def turn(self, index: int) -> int:
        """Return the turn of a candidate."""
        if index not in self._turns:
            parents = self._members[index].parents if index else ()
            self._turns[index] = max(map(self.turn, parents), default=0)
        return self._turns[index]

    def give_back(self, index: int) -> None:
        """Let the component that had its turn have it again."""
        if index in self._turns:
            self._turns[index] -= 1
