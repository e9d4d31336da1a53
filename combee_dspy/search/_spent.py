"""What effects cost: their sum, and what one of a kind may cost at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.costs import Tariff
from combee_dspy.records import CallUsage

__all__ = ["COUNTED", "EffectKind", "Spent", "at_most"]

_FRAME = (
    256  # tokens that an adapter writes around the texts of a prompt: DSPy's own take 80 to 200
)
COUNTED = ("calls", "tokens", "dollars", "gpu_seconds")


@dataclass(slots=True)
class Spent:
    """What effects have cost together: LM calls that a service answered, and prompt and completion
    tokens.

    ``dollars`` are ``None`` once the price of a call is not known, ``gpu_seconds`` where nobody
    counts them.
    """

    calls: int = 0
    tokens: int = 0
    dollars: float | None = 0.0
    gpu_seconds: float | None = None

    def add(self, usage: Iterable[CallUsage]) -> None:
        """Add the calls of one effect."""
        for row in usage:
            self.calls += row.calls - row.cached
            self.tokens += row.prompt_tokens + row.completion_tokens
            if self.dollars is not None:
                self.dollars = None if row.dollars is None else self.dollars + row.dollars
            if row.gpu_seconds is not None:
                self.gpu_seconds = (self.gpu_seconds or 0.0) + row.gpu_seconds

    def lose(self, granted: Mapping[str, float]) -> None:
        """Add what an effect of which nobody knows the cost was granted."""
        for name, most in granted.items():
            if name != "dollars" or self.dollars is not None:
                setattr(self, name, (getattr(self, name) or 0) + most)


@dataclass(slots=True)
class EffectKind:
    """Effects of one kind: how many are in flight, how many have ended, what these cost, and the
    dearest of them.

    ``told`` is what one LM call may cost at most, where that is known beforehand.
    """

    flying: int = 0
    ended: int = 0
    free: bool = False  # one of them asked no LM
    answered: int = 0  # calls that a service answered: what they cost says what the next may
    dearest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    told: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    total: Spent = field(default_factory=lambda: Spent())

    @property
    def is_seen(self) -> bool:
        """Whether it has shown what one costs: a service has answered one, or one asked none."""
        return self.answered > 0 or self.free

    def most(self, name: str, dearest: float, growth: int = 1) -> float:
        """Return what one may cost at most: as told, else so many times what the dearest has cost.

        Where none of this kind was seen, that is a call as told, else the ``dearest`` of any kind.
        """
        if not self.is_seen:
            return max(dearest, 1.0) if name == "calls" else self.told[name] or dearest * growth
        if name == "calls":
            return self.dearest[name]
        told = max(self.dearest["calls"], 1.0) * self.told[name]
        return max(told, self.dearest[name] * (1 if told else growth))

    def land(self, usage: Sequence[CallUsage]) -> None:
        """Note what one of them has cost."""
        self.ended += 1
        self.free = self.free or not usage
        own = Spent()
        own.add(usage)
        self.total.add(usage)
        own.calls = 0
        for row in usage:
            self.answered += row.calls - row.cached - row.errors
            # What a cache has answered may be sent the next time. A call that failed and was
            # repeated had to be allowed beside.
            own.calls += max(row.calls - row.errors, min(row.calls, 1))
        for name in COUNTED:
            self.dearest[name] = max(self.dearest[name], getattr(own, name) or 0)


def at_most(lms: Iterable[Any], texts: Iterable[str], tariff: Tariff) -> Mapping[str, float]:
    """Return the tokens and dollars of one call of any of these LMs at most, with such texts in its
    prompt.

    That is known where every LM tells how long its answers may be (``max_tokens``); else nothing is
    returned.
    """
    tokens = dollars = 0.0
    # No token is less than a byte.
    size = _FRAME + sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    for lm in lms:
        options = getattr(lm, "kwargs", {})
        longest = options.get("max_tokens") or options.get("max_completion_tokens")
        if longest is None:
            return {}
        longest *= options.get("n") or 1
        price = tariff.price(lm.model)
        tokens, dollars = (
            max(tokens, size + longest),
            max(dollars, 0.0 if price is None else price.dollars(size, longest)),
        )
    return {"tokens": tokens, "dollars": dollars}
