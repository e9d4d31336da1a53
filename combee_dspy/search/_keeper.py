"""What the two ways of keeping what was learned have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._pool import Member
from combee_dspy.search._update import Learned

__all__ = ["Keeper", "Parent"]


@dataclass(frozen=True, slots=True)
class Parent:
    """What an update runs on, decided when it begins."""

    candidate: Candidate
    index: int  # its position in the pool; −1 where it has none yet
    components: tuple[str, ...] | None  # what will be edited; none where that hangs on the rollouts
    weights: Mapping[str, float]  # probability of each operator, by label


class Keeper(ABC):
    """Keeps what updates learned. Every method is called in the order of updates; only :meth:`check` overlaps.

    Attributes:
        proposed: Whether any update has made a new text.
    """

    proposed: bool = False

    def begun(self) -> None:  # noqa: B027 - most have nobody to tell
        """Hear that the run begins, before anything is bought."""

    def ended(self, error: Exception | None) -> None:  # noqa: B027 - as above
        """Hear that no update is under way any more, and of what ended the run if it failed."""

    @abstractmethod
    async def parent(self, step: int) -> Parent:
        """Return what update ``step`` runs on: a function of the updates committed, in a trunk proposed, so far."""

    @abstractmethod
    def select(self, parent: Parent, rows: Sequence[Row], rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what an update edits, once its rollouts are there."""

    def sampled(self, parent: Parent, rows: Sequence[Row]) -> None:  # noqa: B027 - most have nobody to tell
        """Hear of an update's minibatch before it runs."""

    @abstractmethod
    async def propose(self, learned: Learned, parent: Parent) -> object:
        """Make candidates of what was learned; called when every earlier update has proposed."""

    @abstractmethod
    async def check(
        self, learned: Learned, parent: Parent, proposed: object, turn: Callable[[], Awaitable[None]]
    ) -> object:
        """Run the candidates on what decides about them; ``turn`` waits until every earlier update is committed."""

    @abstractmethod
    async def commit(self, learned: Learned, parent: Parent, checked: object) -> None:
        """Keep what is worth keeping; called when every earlier update is committed."""

    @abstractmethod
    async def result(self) -> Member:
        """Return what the run returns, once the last update is committed, with the scores that decided."""

    @abstractmethod
    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts that an update of so many rows and children takes at most."""
