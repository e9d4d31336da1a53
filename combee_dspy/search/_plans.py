"""What an update runs, and what it learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from combee_dspy.records import Lessons, Reflection, Rollout
from combee_dspy.search._candidates import Candidate, Row

__all__ = ["Learned", "Parent", "UpdatePlan"]


@dataclass(frozen=True, slots=True)
class Parent:
    """What an update runs on, decided when it begins.

    Attributes:
        index: Its position in the pool; −1 where it has none yet.
        components: What will be edited; ``None`` where that hangs on the rollouts.
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
