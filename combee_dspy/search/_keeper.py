"""What passes between the loop and the two ways to keep what updates learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from combee_dspy.records import Lessons, Reflection, Rollout
from combee_dspy.search._candidates import Candidate, Member, Row


@dataclass(frozen=True, slots=True)
class Parent:
    """What an update runs on, decided when it begins.

    Attributes:
        index: Its position in the pool; −1 where it has none yet.
        components: What will be edited; ``None`` where a selector decides by the rollouts.
    """

    candidate: Candidate
    index: int
    components: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """What an update runs, decided before it begins: a parent on the rows of a minibatch.

    Attributes:
        children: How many candidates it may make.
        perfect_score: What a success scores, as far as the updates tell that it knows.
    """

    step: int
    parent: Parent
    rows: tuple[Row, ...]
    children: int
    perfect_score: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What an update learned; lessons and reflections are by component.

    Attributes:
        rollouts: The parent's, in minibatch order.
        lessons: Empty where nothing was learned.
        reflections: Those that teach something.
        skipped: Why nothing was learned, else empty.
    """

    plan: UpdatePlan
    rollouts: tuple[Rollout, ...]
    lessons: Mapping[str, Lessons] = field(default_factory=dict)
    reflections: Mapping[str, tuple[Reflection, ...]] = field(default_factory=dict)
    skipped: str = ""

    @property
    def dataset(self) -> dict[str, list[dict[str, object]]]:
        """The records of the reflections, as proposers of GEPA's kind read them."""
        return {
            name: [dict(reflection.record) for reflection in reflections]
            for name, reflections in self.reflections.items()
        }


@dataclass(frozen=True, slots=True)
class Child:
    """A candidate that an operator or a proposer made.

    Attributes:
        operator: The label of what made it.
        components: Those that it edited.
    """

    candidate: Candidate
    operator: str
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """A child that ran on its screen.

    Attributes:
        before, after: The rollouts on the screen, of the parent and of the child.
        reason: Why the child was validated, or was not.
        validation: Its rollouts by validation row; ``None`` where it was refused.
    """

    child: Child
    before: Sequence[Rollout]
    after: Sequence[Rollout]
    reason: str
    validation: Mapping[int, Sequence[Rollout]] | None = None


class Keeper(ABC):
    """Keeps what updates learn.

    Each update is proposed, checked and committed. Every method is called in the order of updates,
    but checks of several updates overlap: a keeper holds what it proposed by their numbers.

    Attributes:
        proposed: Whether any update has made a new text.
    """

    proposed: bool = False

    @abstractmethod
    async def begin(self) -> None:
        """Begin, before the first rollout."""

    @abstractmethod
    def ended(self, error: Exception | None) -> None:
        """Clean up once no update is under way any more; ``error`` is what a run failed with."""

    @abstractmethod
    async def parent(self, step: int) -> Parent:
        """Return what update ``step`` runs on, by the updates that were released before it."""

    def select(self, plan: UpdatePlan, rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what an update edits, where its parent leaves that to its rollouts."""
        raise NotImplementedError

    @abstractmethod
    def sampled(self, plan: UpdatePlan) -> None:
        """Note an update's minibatch before it runs."""

    def is_settled(self, last: int, size: int) -> bool:
        """Return whether updates up to ``last`` had all of ``size`` training rows right.

        No by default.
        """
        return False

    @abstractmethod
    async def propose(self, learned: Learned) -> None:
        """Make candidates of what was learned, once every earlier update has proposed."""

    @abstractmethod
    async def check(self, learned: Learned) -> None:
        """Run the candidates on the rows that decide about them."""

    @abstractmethod
    async def commit(self, learned: Learned) -> None:
        """Keep what is worth keeping, once every earlier update is committed."""

    @abstractmethod
    async def result(self) -> Member:
        """Return the candidate that the run returns, once the last update is committed."""

    @abstractmethod
    def rollouts(self, size: int, run: int, children: int) -> int:
        """Return the rollouts that the next update takes at most.

        Args:
            size: Rows of its minibatch.
            run: Those that are run; the others are recorded.
            children: How many candidates it may make.
        """
