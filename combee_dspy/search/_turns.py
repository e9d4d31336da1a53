"""Which components an update of a candidate edits."""

from __future__ import annotations

from gepa.proposer.reflective_mutation.base import ReflectionComponentSelector

__all__ = ["Turns"]


class Turns:
    """Lets components take turns; a child goes on where its parent's turn was, as in GEPA.

    Args:
        names: The components.
        selector: ``"round_robin"``, ``"all"``, or the user's.
    """

    def __init__(self, names: tuple[str, ...], selector: str | ReflectionComponentSelector) -> None:
        self._names = names
        self._selector = selector
        self._turns = [0]  # by candidate, the student first

    def take(self, index: int) -> tuple[str, ...] | None:
        """Return what the next update of a candidate edits.

        ``None`` where the user's selector decides: it reads the rollouts.
        """
        if not isinstance(self._selector, str):
            return None
        if self._selector == "all":
            return self._names
        turn = self._turns[index]
        self._turns[index] += 1
        return (self._names[turn % len(self._names)],)

    def give_back(self, index: int) -> None:
        """Let the component that had its turn have it again."""
        self._turns[index] -= 1

    def add_child(self, parent: int) -> None:
        """Note that a child of a candidate has joined the others."""
        self._turns.append(self._turns[parent])
