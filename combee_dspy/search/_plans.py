"""The records of one update: its plan, its lessons, and its children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from combee_dspy.records import Lessons, Reflection, Rollout
from combee_dspy.search._candidates import Candidate, Row

__all__ = ["Checked", "Child", "Learned", "Parent", "UpdatePlan"]


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
    """

    step: int
    parent: Parent
    rows: tuple[Row, ...]
    children: int


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
