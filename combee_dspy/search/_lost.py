"""Effects in flight at a kill, and calls whose answers were lost: nobody knows what they cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from combee_dspy.search._amounts import COUNTED, UNITS, Amounts, KindCosts, zeros

# What is not known of a call without an answer: its tokens and dollars. The call itself is booked.
_UNCOUNTED = np.array([0.0, 1.0, 1.0, 0.0])


@dataclass(frozen=True, slots=True)
class Lost:
    """An effect, or calls of one, for which a service may charge what nobody has counted.

    Attributes:
        is_rollout: Whether it costs what rollouts cost, or what all else does.
        most: What they may have cost at most, of what is limited.
        until: When no service can be working on them any more, in seconds since 1970.
        answers: How many calls got no answer that could be read; 0 for a whole effect that was in
            flight when a run was killed.
    """

    is_rollout: bool
    most: Mapping[str, float]
    until: float = 0.0
    answers: int = 0


class LostCosts:
    """All :class:`Lost` effects and calls of a run.

    An effect that was in flight at a kill counts with its maximum while a service may be working on
    it, and then with the mean of its kind. A call without an answer counts with that mean at once.
    """

    def __init__(self) -> None:
        # A row for each effect that was in flight at a kill.
        self._is_rollout = np.zeros(0, dtype=bool)
        self._until = np.zeros(0)
        self._most = np.zeros((0, len(COUNTED)))
        # Of calls without an answer there may be many: a sum for rollouts, and one for all else.
        self._answers = {True: 0, False: 0}
        self._answers_most = {True: zeros(), False: zeros()}

    def add(self, lost: Lost) -> None:
        """Add an effect, or calls."""
        most = np.array([lost.most.get(name, 0.0) for name in COUNTED])
        if lost.answers:
            self._answers[lost.is_rollout] += lost.answers
            self._answers_most[lost.is_rollout] = self._answers_most[lost.is_rollout] + most
        else:
            self._is_rollout = np.append(self._is_rollout, lost.is_rollout)
            self._until = np.append(self._until, lost.until)
            self._most = np.vstack([self._most, most])

    def cost(self, kinds: Mapping[str, KindCosts]) -> tuple[Amounts, Amounts]:
        """Return the maximum of what may still be running, and the likely cost of the rest.

        Likely is the mean of those of its kind that ended; the maximum where none has.
        """
        running = self._until > time.time()
        likely = zeros()
        for rollouts, answers in self._answers.items():
            alike = [state for kind, state in kinds.items() if (kind == "rollout") == rollouts]
            total = sum((state.total for state in alike), zeros())
            ended = sum(state.ended for state in alike)
            answered = sum(state.answered for state in alike)
            over = ~running & (self._is_rollout == rollouts)
            likely += total * over.sum() / ended if ended else self._most[over].sum(axis=0)
            if answered:
                likely += total * _UNCOUNTED * answers / answered
            else:
                likely += self._answers_most[rollouts]
        return self._most[running].sum(axis=0), likely

    def is_held(self, limits: Amounts) -> bool:
        """Return whether something is held, for what may still be running, that is limited."""
        running = self._until > time.time()
        return bool((self._most[running][:, np.isfinite(limits)] > 0).any())

    def describe_held(self, index: int) -> str:
        """Return how much of a limit is held for what may still be running; empty for nothing.

        Args:
            index: Which of :data:`COUNTED` is limited.
        """
        held = (self._until > time.time()) & (self._most[:, index] > 0)
        if not held.any():
            return ""
        until = time.strftime("%H:%M", time.localtime(self._until[held].max()))
        amount = self._most[held, index].sum()
        return f" ({amount:g} are held until {until} for what was in flight at a kill)"

    def doubts(self, booked: Amounts, limits: Amounts, kinds: Mapping[str, KindCosts]) -> list[str]:
        """Return by how much these costs may pass limits, a sentence for each limit.

        Args:
            booked: What all other effects have cost.
            limits: Infinite where there is none.
            kinds: What effects have cost, by kind.
        """
        held, likely = self.cost(kinds)
        most = self._most.sum(axis=0) + sum(self._answers_most.values())
        over = np.maximum(0.0, booked + np.maximum(most, held + likely) - limits)
        killed, answers = len(self._until), sum(self._answers.values())
        causes = [f"{killed} effects were in flight when the run was killed"] if killed else []
        causes += [f"{answers} calls got no answer that could be read"] if answers else []
        return [
            f"{', and '.join(causes)}. Of the {unit} spent, {likely[index]:g} are their likely cost"
            + (f", and {held[index]:g} the maximum of what may still run" if held[index] else "")
            + f". The limit of {limits[index]:g} {unit} may be passed by {over[index]:g}."
            for index, unit in enumerate(UNITS)
            if limits[index] < np.inf and held[index] + likely[index] > 0
        ]
