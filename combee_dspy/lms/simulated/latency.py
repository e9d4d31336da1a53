"""How long the simulated service takes for one answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["LatencyLaw", "uniform"]

_NORMAL = NormalDist()
_BITS = 52


def uniform(seed: int, *place: str | int) -> float:
    """Return one draw from the open interval (0, 1) for one place of a run.

    The same numbers as ``derive(seed, *place)`` would be seeded with, without
    the cost of a generator for a single draw.
    """
    # 52 bits: half a step more would not be representable below 1.0.
    return ((derive_seed(seed, *place) >> (128 - _BITS)) + 0.5) / (1 << _BITS)


@dataclass(frozen=True, slots=True)
class LatencyLaw:
    """Seconds = (ttft + output_tokens / tokens_per_second) × lognormal(0, sigma).

    The lognormal factor has median 1, so the bracket is the median latency.
    Queueing for a slot comes on top and is not part of this law. The form and
    the defaults are those of the project's measured comparison of optimizers
    on one epoch (0.5 s to the first token, 60 tokens a second, sigma 0.35);
    they describe no particular provider.

    Args:
        ttft: Median time to the first token, in simulated seconds, at least 0.
        tokens_per_second: Median decoding speed of one slot, above 0.
        sigma: Standard deviation of the log of the factor, at least 0. 0 means no spread.

    Raises:
        ArgumentValueError: A value is out of range or not finite.
    """

    ttft: float = 0.5
    tokens_per_second: float = 60.0
    sigma: float = 0.35

    def __post_init__(self) -> None:
        for name, low_ok in (("ttft", True), ("tokens_per_second", False), ("sigma", True)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (value == 0 and not low_ok):
                problem = "must be a finite number, " + ("at least 0" if low_ok else "above 0")
                raise ArgumentValueError(name, value, problem, "Use the default if in doubt.")

    def seconds(self, output_tokens: int, seed: int, *place: str | int) -> float:
        """Return the simulated seconds of one answer.

        Args:
            output_tokens: Tokens written.
            seed: The service's seed.
            *place: What identifies the answer: the request's content and its occurrence.

        Returns:
            Simulated seconds, without queueing. Equal arguments give equal seconds.
        """
        median = self.ttft + output_tokens / self.tokens_per_second
        if self.sigma == 0:
            return median
        return median * math.exp(self.sigma * _NORMAL.inv_cdf(uniform(seed, "latency", *place)))
