"""Components that nothing can be learned for, since no rollout called their predictor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Compilation
from combee_dspy.search._effects import Effects
from combee_dspy.search._plans import Learned

__all__ = ["Untraced"]


@dataclass(eq=False)
class Untraced:
    """Notes in each committed update which components had a call to learn from."""

    task: Compilation
    effects: Effects

    def __post_init__(self) -> None:
        self._ignored = (
            self.task.code if self.task.edits_instructions else frozenset(self.task.components)
        )
        self._first_missed: dict[str, int] = {}
        self._first_traced: dict[str, int] = {}

    def note(self, learned: Learned) -> None:
        """Note an update, and warn once of each component that no rollout has called so far."""
        step = learned.plan.step
        for component in learned.lessons:
            traced = _is_traced(component, learned.rollouts)
            (self._first_traced if traced else self._first_missed).setdefault(component, step)
        for component in self.components(step):
            self.effects.warn(describe_untraced([component]), step=step)

    def components(self, step: float = math.inf) -> list[str]:
        """Return the components without any call in the updates up to ``step``, all by default."""
        return [
            component
            for component, missed in self._first_missed.items()
            if component not in self._ignored
            and missed <= step
            and not (component in self._first_traced and self._first_traced[component] <= step)
        ]


def describe_untraced(components: Sequence[str]) -> str:
    """Return what to tell people of components that no rollout has called."""
    names = ", ".join(map(repr, components))
    return (
        f"No rollout called predictor {names}, so nothing was learned for it. "
        "A call counts if a predictor of the program made it, a copy of one, "
        "or a new predictor with an equal signature."
    )


def _is_traced(component: str, rollouts: Sequence[Rollout]) -> bool:
    """Whether a rollout teaches something about a component: by a call, or by failing before it."""
    return any(
        rollout.error is not None or any(call.is_of(component) for call in rollout.calls)
        for rollout in rollouts
    )
