"""How a run keeps what its updates learn: what the loop asks of the two ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Member
from combee_dspy.search._plans import Learned, Parent, UpdatePlan

__all__ = ["C", "Keeper", "P"]

P = TypeVar("P")  # what an update proposes
C = TypeVar("C")  # what was checked of it


class Keeper(ABC, Generic[P, C]):
    """Keeps what updates learn.

    Each update is proposed, checked and committed: :meth:`check` gets what :meth:`propose` returns,
    and :meth:`commit` what :meth:`check` returns. Every method is called in the order of updates,
    but checks of several updates overlap.

    Attributes:
        proposed: Whether any update has made a new text.
    """

    proposed: bool = False

    def begin(self) -> None:
        """Begin, before the first rollout."""

    def ended(self, error: Exception | None) -> None:
        """Clean up once no update is under way any more; ``error`` is what a run failed with."""

    @abstractmethod
    async def parent(self, step: int) -> Parent:
        """Return what update ``step`` runs on, by the updates that were released before it."""

    def select(self, plan: UpdatePlan, rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what an update edits, where its parent leaves that to its rollouts."""
        raise NotImplementedError

    def sampled(self, plan: UpdatePlan) -> None:
        """Note an update's minibatch before it runs."""

    def is_settled(self, last: int, size: int) -> bool:
        """Return whether updates up to ``last`` had all of ``size`` training rows right.

        No by default.
        """
        return False

    @abstractmethod
    async def propose(self, learned: Learned) -> P:
        """Make candidates of what was learned, once every earlier update has proposed."""

    @abstractmethod
    async def check(self, learned: Learned, proposed: P) -> C:
        """Run the candidates on the rows that decide about them."""

    @abstractmethod
    async def commit(self, learned: Learned, checked: C) -> None:
        """Keep what is worth keeping, once every earlier update is committed."""

    @abstractmethod
    async def result(self) -> Member:
        """Return the candidate that the run returns, once the last update is committed."""

    @abstractmethod
    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts that an update of so many rows and children takes at most."""
