"""What effects cost, as vectors of four amounts: what the next one of a kind may cost, and what
nobody knows: effects in flight at a kill, and calls whose answers were lost.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan

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

_CALLS, _TOKENS = 0, 1
# Tokens that an adapter writes around the texts of a prompt: DSPy's own take 80 to 200.
_FRAME = 256
# Prompts may hold this multiple of the tokens a byte that the densest of their kind held so far:
# code and rare words take twice as many as plain English.
_DENSER = 2.0
# What stands in for that density in a run that goes on, until it has counted a prompt itself:
# tokens a byte of plain English.
_PLAIN = 0.25


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


@dataclass(frozen=True, slots=True)
class Spent:
    """What effects have cost together, and likely have where nobody knows it.

    Attributes:
        calls: LM calls that went to a service.
        tokens: Prompt and completion tokens.
        dollars: ``None`` once a call without a price was made.
        gpu_seconds: ``None`` while nobody counts them.
    """

    calls: int
    tokens: int
    dollars: float | None
    gpu_seconds: float | None

    @classmethod
    def of(cls, amounts: Amounts, *, counts_gpus: bool) -> Spent:
        """Return amounts by name."""
        calls, tokens, dollars, seconds = amounts.tolist()
        priced = None if isnan(dollars) else dollars
        return cls(round(calls), round(tokens), priced, seconds if counts_gpus else None)


@dataclass(frozen=True, slots=True)
class LargestCall:
    """What one LM call takes at most.

    Attributes:
        prompt: By its prompt, if each byte is a token: no token is shorter.
        answer: By an answer as long as its LM allows.
    """

    prompt: Amounts
    answer: Amounts

    def or_larger(self, other: LargestCall | None) -> LargestCall:
        """Return what either of two calls takes at most."""
        if other is None:
            return self
        return LargestCall(
            np.maximum(self.prompt, other.prompt), np.maximum(self.answer, other.answer)
        )


def largest_call(
    lms: Iterable[dspy.BaseLM], texts: Iterable[str], tariff: Tariff
) -> LargestCall | None:
    """Return what one call with these texts in its prompt takes at most.

    ``None`` where an LM has no ``max_tokens``: its answers may be of any length.

    Args:
        lms: Whoever may be asked; the dearest counts.
        texts: Parts of the prompt.
        tariff: Has the prices.
    """
    prompt = _FRAME + sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    largest: LargestCall | None = None
    for lm in lms:
        options = getattr(lm, "kwargs", {})
        answer = options.get("max_tokens") or options.get("max_completion_tokens")
        if answer is None:
            return None
        answer *= options.get("n") or 1
        price = tariff.price(lm.model)
        prompt_dollars = 0.0 if price is None else price.dollars(prompt, 0)
        answer_dollars = 0.0 if price is None else price.dollars(0, answer)
        call = LargestCall(
            np.array([0.0, prompt, prompt_dollars, 0.0]),
            np.array([0.0, answer, answer_dollars, 0.0]),
        )
        largest = call.or_larger(largest)
    return largest


def times_paid(room: Amounts, price: Amounts) -> float:
    """Return how often a room pays a price; what nobody knows limits nothing."""
    costs = (price > 0) & np.isfinite(room)
    return min(room[costs] // price[costs], default=inf)


def limited(amounts: Amounts, limits: Amounts) -> dict[str, float]:
    """Return the amounts that have a limit, by name."""
    named = zip(COUNTED, amounts.tolist(), limits, strict=True)
    return {name: amount for name, amount, limit in named if limit < inf}


def describe_passed(used: Amounts, limits: Amounts) -> list[str]:
    """Return by how much limits were passed, a sentence each."""
    return [
        f"The budget of {limit:g} {unit} was passed by {amount:g}: something cost more than was"
        " known beforehand."
        for unit, limit, amount in zip(UNITS, limits, used - limits, strict=True)
        if amount > 0
    ]


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
        charged: How many of them asked a service.
        is_free: Whether one of them asked no LM.
        bound: What one LM call takes at most, by :func:`largest_call`; ``None`` where unknown.
        densest: Tokens a byte of the densest prompts so far, the mean of an effect's; 0 for none.
        dearest: The most that one of them has cost.
        total: What they have cost together.
    """

    in_flight: int = 0
    ended: int = 0
    answered: int = 0
    charged: int = 0
    is_free: bool = False
    bound: LargestCall | None = None
    densest: float = 0.0
    dearest: Amounts = field(default_factory=zeros)
    total: Amounts = field(default_factory=zeros)

    def add(self, usage: Sequence[CallUsage], bound: LargestCall | None = None) -> None:
        """Add one that has ended, with what one of its calls was to take at most."""
        self.ended += 1
        self.is_free = self.is_free or not usage
        replies = sum(row.calls - row.cached - row.errors for row in usage)
        self.answered += replies
        self.charged += any(row.calls > row.cached for row in usage)
        if bound is not None and replies:
            tokens = sum(row.prompt_tokens for row in usage)
            self.densest = max(self.densest, tokens / (replies * bound.prompt[_TOKENS]))
        cost = cost_of(usage)
        self.total = self.total + cost
        # A cached answer may have to be sent the next time. A call that is sent again reserves
        # its cost itself.
        cost[_CALLS] = sum(max(row.calls - row.errors, min(row.calls, 1)) for row in usage)
        self.dearest = np.fmax(self.dearest, cost)

    @property
    def mean(self) -> Amounts:
        """What one that asked a service has cost, in mean; 0 where nobody knows it."""
        return np.nan_to_num(self.total / max(self.charged, 1))

    def largest(self, kinds: Iterable[KindCosts]) -> Amounts:
        """Return what one LM call takes at most; zeros where nobody knows it.

        Until one of the kind was answered, the densest prompts of all ``kinds`` stand in for it.
        """
        if self.bound is None:
            return zeros()
        densest = self.densest or max(state.densest for state in kinds)
        if not densest and self.answered and self.dearest[_TOKENS] > 0:
            # An earlier part of the run knew how dense prompts are: by bytes alone, what it
            # admitted would be refused.
            densest = _PLAIN
        density = min(1.0, _DENSER * densest) or 1.0
        return density * self.bound.prompt + self.bound.answer

    def most(self, kinds: Collection[KindCosts], growth: int = 1) -> Amounts:
        """Return what one may cost at most.

        That is as many calls as the dearest made, each at its bound; without a bound ``growth``
        times the dearest. Until one was answered, the dearest of all ``kinds`` stands in for it.
        """
        dearest = self.dearest
        if not (self.answered or self.is_free):
            dearest = np.max([state.dearest for state in kinds], axis=0)
        calls = dearest[_CALLS] if self.is_free else max(dearest[_CALLS], 1.0)
        bound = self.largest(kinds) * max(calls, 1.0)
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
