"""How much the simulated model reasons before it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import cycle
from statistics import NormalDist

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.simulated.latency import uniform

__all__ = ["ReasoningLaw"]

_NORMAL = NormalDist()
_CHARS_PER_TOKEN = 4
_LEAST = 8
# Says nothing that a lesson, a question or an answer could be found in.
_SENTENCES = (
    "Simulated reasoning: first see what is asked.",
    "Then look at which quantities are given and which one is missing.",
    "The instruction comes before habit wherever it says how to proceed.",
    "Put the quantities in their places, one after another.",
    "Carry the calculation out step by step and keep every digit until the end.",
    "Check whether the result is of a sensible size and sign.",
    "Go back where a step does not hold.",
    "Write the result in the form that was asked for.",
)


@dataclass(frozen=True, slots=True)
class ReasoningLaw:
    """Tokens of a ``reasoning`` field in a task's answer = tokens × lognormal(0, sigma).

    The factor has median 1 and derives from the service's seed and the request, so
    a repeated request reasons as long as before. The text says nothing that could
    teach. The length decides latency and tokens, never whether the answer is right.

    Args:
        tokens: Median tokens, at least 8.
        sigma: Standard deviation of the log of the factor, at least 0. The default is an
            assumption: as wide as the service's latencies at equal length.

    Raises:
        ArgumentValueError: A value is out of range or not finite.
    """

    tokens: float = 300.0
    sigma: float = 0.35

    def __post_init__(self) -> None:
        for name, least in (("tokens", _LEAST), ("sigma", 0)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least:
                raise ArgumentValueError(
                    f"reasoning.{name}",
                    value,
                    f"must be a finite number, at least {least}",
                    "Use the default if in doubt.",
                )

    def text(self, seed: int, *place: str | int) -> str:
        """Return the reasoning at one place, of the length that the law draws there.

        Args:
            seed: The service's seed.
            *place: What identifies the answer.
        """
        drawn = self.tokens * math.exp(self.sigma * _NORMAL.inv_cdf(uniform(seed, "reasoning", *place)))
        wanted, parts, length = max(drawn, _LEAST) * _CHARS_PER_TOKEN, list[str](), -1
        for sentence in cycle(_SENTENCES):
            for word in sentence.split():
                if length + 1 + len(word) > wanted:
                    return " ".join(parts)
                parts.append(word)
                length += 1 + len(word)
        raise AssertionError  # pragma: no cover - the cycle does not end; for the type checker
