"""What a study of trajectories needs of a world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import dspy

from combee_dspy.records import Metric

__all__ = ["Scene", "World"]


@dataclass(frozen=True, slots=True)
class Scene:
    """A world that is open: a program that acts in it, and its tasks."""

    program: dspy.Module
    metric: Metric
    train: Sequence[dspy.Example]
    heldout: Sequence[dspy.Example]


@dataclass(frozen=True, slots=True)
class World:
    """A miniature world, and a scripted agent that lacks two rules of it.

    Attributes:
        rules: The rules, by the pattern of what a failed check says. The first is the habit of
            every second trajectory: without it, nobody judges the rest.
        plan: What the agent carries out: of a task, the advice that it has, and a draw.
        open: Makes the world, with so many workers.
    """

    rules: Mapping[str, str]
    plan: Callable[[str, str, int], list[str]]
    open: Callable[[int], AbstractContextManager[Scene]]

    @property
    def habit(self) -> str:
        """What every second trajectory does already."""
        return next(iter(self.rules.values()))
