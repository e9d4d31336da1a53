"""Whether one method may be called faster than another: only if its result is no worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.evaluation import paired_difference

__all__ = ["MARGIN", "Comparison", "compare"]

MARGIN = 0.05
"""How much worse, in held-out score, still counts as no worse. Fixed before anything was measured."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method beside a reference, on the same held-out examples.

    Attributes:
        reference: The reference's name.
        difference: Mean held-out score of the method minus the reference's.
        low: Lower end of the 95 % interval of ``difference``.
        high: Upper end.
        margin: What ``-low`` had to stay below.
        comparable: Whether the method is shown to be no worse: ``low > -margin``.
        times_faster: Seconds of the reference over seconds of the method; ``None`` where not comparable.
    """

    reference: str
    difference: float
    low: float
    high: float
    margin: float
    comparable: bool
    times_faster: float | None


def compare(
    reference: str,
    reference_scores: Sequence[float],
    scores: Sequence[float],
    *,
    seconds: tuple[float, float],
    seed: int,
) -> Comparison:
    """Compare a method with a reference: non-inferiority first, speed only after it.

    The paired bootstrap interval of the difference must lie above ``-MARGIN``
    (the usual test of non-inferiority). A method that learned less in less time
    gets no multiple, and neither does one whose sample is too small to tell.

    Args:
        reference: The reference's name.
        reference_scores: Its held-out scores, one per example.
        scores: The method's, in the same order.
        seconds: Seconds of the reference and of the method.
        seed: Seed of the resampling.

    Raises:
        ArgumentValueError: The scores do not pair, or there are none.
    """
    found = paired_difference(reference_scores, scores, seed=seed)
    comparable = found.low > -MARGIN
    times = seconds[0] / seconds[1] if comparable else None
    return Comparison(reference, found.difference, found.low, found.high, MARGIN, comparable, times)
