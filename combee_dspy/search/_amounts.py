"""What effects cost, as vectors of four amounts: what the next one of a kind may cost, and what
nobody knows: effects in flight at a kill, and calls whose answers were lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import dspy
import numpy as np
from numpy.typing import NDArray

from combee_dspy.costs import Tariff
from combee_dspy.records import CallUsage

COUNTED = ("calls", "tokens", "dollars", "gpu_seconds")
"""What a limit can be on, in the order of :data:`Amounts`."""

UNITS = ("calls", "tokens", "dollars", "GPU-seconds")
"""The same, in words."""

Amounts = NDArray[np.float64]
"""A number for each of :data:`COUNTED`; NaN where nobody knows it, so that it passes no limit."""

_CALLS = 0
# Tokens that an adapter writes around the texts of a prompt: DSPy's own take 80 to 200.
_FRAME = 256


def cost_of(usage: Iterable[CallUsage]) -> Amounts:
    """Return the sum of LM calls; what a cache has answered costs nothing."""
    rows = tuple(usage)
    return np.array(
        [
            sum(row.calls - row.cached for row in rows),
            sum(row.prompt_tokens + row.completion_tokens for row in rows),
            sum(nan if row.dollars is None else row.dollars for row in rows),
            sum(row.gpu_seconds or 0.0 for row in rows),
        ],
        dtype=float,
    )


def largest_call(lms: Iterable[dspy.BaseLM], texts: Iterable[str], tariff: Tariff) -> Amounts:
    """Return the tokens and dollars that one call with these texts in its prompt costs at most.

    Zeros where an LM has no ``max_tokens``: its answers may be of any length.

    Args:
        lms: Whoever may be asked; the dearest counts.
        texts: Parts of the prompt. No token is shorter than a byte.
        tariff: Has the prices.
    """
    prompt = _FRAME + sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    tokens = dollars = 0.0
    for lm in lms:
        options = getattr(lm, "kwargs", {})
        answer = options.get("max_tokens") or options.get("max_completion_tokens")
        if answer is None:
            return zeros()
        answer *= options.get("n") or 1
        tokens = max(tokens, prompt + answer)
        if (price := tariff.price(lm.model)) is not None:
            dollars = max(dollars, price.dollars(prompt, answer))
    return np.array([0.0, tokens, dollars, 0.0])


def zeros() -> Amounts:
    """Return amounts of nothing."""
    return np.zeros(len(COUNTED))


@dataclass(slots=True)
class KindCosts:
    """What effects of one kind have cost so far.

    Attributes:
        in_flight: How many have reserved their cost and are not settled.
        ended: How many are settled.
        answered: Their calls that a service answered.
        is_free: Whether one of them asked no LM.
        bound: What one LM call costs at most, by :func:`largest_call`; zeros where unknown.
        dearest: The most that one of them has cost.
        total: What they have cost together.
    """

    in_flight: int = 0
    ended: int = 0
    answered: int = 0
    is_free: bool = False
    bound: Amounts = field(default_factory=zeros)
    dearest: Amounts = field(default_factory=zeros)
    total: Amounts = field(default_factory=zeros)

    def add(self, usage: Sequence[CallUsage]) -> None:
        """Add one that has ended."""
        self.ended += 1
        self.is_free = self.is_free or not usage
        self.answered += sum(row.calls - row.cached - row.errors for row in usage)
        cost = cost_of(usage)
        self.total = self.total + cost
        # A cached answer may have to be sent the next time. A call that is sent again reserves
        # its cost itself.
        cost[_CALLS] = sum(max(row.calls - row.errors, min(row.calls, 1)) for row in usage)
        self.dearest = np.fmax(self.dearest, cost)

    def most(self, dearest_of_all: Amounts, growth: int = 1) -> Amounts:
        """Return what one may cost at most.

        That is as many calls as the dearest made, each at its bound; without a bound ``growth``
        times the dearest. Until one was answered, the dearest of all kinds stands in for it.
        """
        dearest = self.dearest if self.answered or self.is_free else dearest_of_all
        calls = dearest[_CALLS] if self.is_free else max(dearest[_CALLS], 1.0)
        bound = self.bound * max(calls, 1.0)
        most = np.where(bound > 0, np.maximum(bound, self.dearest), dearest * growth)
        most[_CALLS] = calls
        return most


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
