"""What effects cost, as vectors of four amounts, and what the next one of a kind may cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
