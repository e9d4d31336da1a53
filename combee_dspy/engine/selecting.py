"""Which components a child edits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gepa.strategies.component_selector import AllReflectionComponentSelector, RoundRobinReflectionComponentSelector

from combee_dspy.engine.candidates import Candidate, TaggedCandidate, is_hidden, visible
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["SelectOnce", "component_selector"]

_SELECTORS: dict[str, Callable[[], Any]] = {
    "round_robin": RoundRobinReflectionComponentSelector,
    "all": AllReflectionComponentSelector,
}
_CHOOSE_UNSEEN = tuple(_SELECTORS.values())
"""Selectors that choose without looking at what a parent did."""


class SelectOnce:
    """A component selector that answers once per parent and minibatch, where those have several children.

    Without it the children of one group would each move round-robin on, and
    edit different components from one scan.

    Args:
        inner: The selector that chooses. It never sees hidden components.
        operators: How many operators there are; below 2 every task is asked for
            anew, as gepa does.
    """

    def __init__(self, inner: Callable[..., Sequence[str]], operators: int) -> None:
        self._inner = inner
        self._once = operators > 1
        self._last: tuple[object, list[str]] | None = None

    def __call__(
        self, state: Any, trajectories: Any, subsample_scores: Any, candidate_idx: int, candidate: Candidate
    ) -> list[str]:
        """Return the components to update."""
        if isinstance(candidate, TaggedCandidate) and candidate.components is not None:
            return list(candidate.components)
        if self._once and self._last is not None and self._last[0] is trajectories:
            return list(self._last[1])
        shown = {key: candidate[key] for key in visible(candidate)}
        chosen = self._inner(state, trajectories, subsample_scores, candidate_idx, shown)
        names = [name for name in chosen if not is_hidden(name)]
        self._last = (trajectories, names)
        return list(names)

    def foresee(self, state: Any, candidate_idx: int, candidate: Candidate) -> tuple[str, ...] | None:
        """Choose before the parent has run; ``None`` where the selector may want to see its trajectories."""
        if type(self._inner) not in _CHOOSE_UNSEEN:
            return None
        shown = {key: candidate[key] for key in visible(candidate)}
        return tuple(name for name in self._inner(state, [], [], candidate_idx, shown) if not is_hidden(name))

    def only(self, candidate: Candidate) -> tuple[str, ...] | None:
        """Return what every choice would be; ``None`` where there is a choice. Changes nothing."""
        names = tuple(visible(candidate))
        every = len(names) == 1 or type(self._inner) is AllReflectionComponentSelector
        return names if every and type(self._inner) in _CHOOSE_UNSEEN else None


def component_selector(value: object) -> Callable[..., Sequence[str]]:
    """Return the component selector that a user meant.

    Raises:
        ArgumentValueError: It is an unknown name.
    """
    if isinstance(value, str):
        if value not in _SELECTORS:
            remedy = f"Give one of {', '.join(sorted(_SELECTORS))}, or a gepa component selector."
            raise ArgumentValueError("component_selector", value, "names no component selector", remedy)
        made: Callable[..., Sequence[str]] = _SELECTORS[value]()
        return made
    return value  # type: ignore[return-value]  # gepa's protocol: any callable
