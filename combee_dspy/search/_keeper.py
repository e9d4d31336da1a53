"""What the two ways of keeping what was learned have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Member
from combee_dspy.search._plans import Learned, Parent, UpdatePlan

__all__ = ["C", "Keeper", "P"]

P = TypeVar("P")  # what an update proposes
C = TypeVar("C")  # what was checked of it


class Keeper(ABC, Generic[P, C]):
    """Keeps what updates learned. Every method is called in the order of updates; only
    :meth:`check` overlaps.

    What :meth:`propose` returns is given to :meth:`check`, and what that returns to :meth:`commit`.

    Attributes:
        proposed: Whether any update has made a new text.
    """

    proposed: bool = False

    def begin(self) -> None:
        """Hear that the run begins, before anything is bought."""

    def ended(self, error: Exception | None) -> None:
        """Hear that no update is under way any more, and of what ended the run if it failed."""

    @abstractmethod
    async def parent(self, step: int) -> Parent:
        """Return what update ``step`` runs on: a function of the updates committed, in a trunk
        proposed, so far.
        """

    def select(self, plan: UpdatePlan, rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what an update edits, by its rollouts; asked where its parent does not say it."""
        raise NotImplementedError

    def sampled(self, plan: UpdatePlan) -> None:
        """Hear of an update's minibatch before it runs."""

    def is_settled(self, last: int, size: int) -> bool:
        """Return whether updates up to ``last`` show that all of so many training rows are right;
        not by default.
        """
        return False

    @abstractmethod
    async def propose(self, learned: Learned) -> P:
        """Make candidates of what was learned; called when every earlier update has proposed."""

    @abstractmethod
    async def check(self, learned: Learned, proposed: P, turn: Callable[[], Awaitable[None]]) -> C:
        """Run the candidates on what decides about them; ``turn`` waits until every earlier update
        is committed.
        """

    @abstractmethod
    async def commit(self, learned: Learned, checked: C) -> None:
        """Keep what is worth keeping; called when every earlier update is committed."""

    @abstractmethod
    async def result(self) -> Member:
        """Return what the run returns, once the last update is committed, with the scores that
        decided.
        """

    @abstractmethod
    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts that an update of so many rows and children takes at most."""
