"""What a difference on held-out rows is called, the same wherever people read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["NO_HELDOUT", "TONES", "UNPROVEN", "Tone", "Verdict", "judge_difference"]

NO_HELDOUT = "no held-out set"
"""What stands in the place of a verdict where nothing was held out."""

UNPROVEN = (
    "No rows were held out, so no gain is proven: give compile(heldout=…) rows of neither set."
)
"""What a run without held-out rows warns of, and what to do about it."""

Tone = Literal["better", "worse", "unshown"]
"""What to colour a verdict as: green, red, or grey."""

TONES: Mapping[Tone, str] = {"better": "green", "worse": "red", "unshown": "bright_black"}
"""How a terminal colours each tone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a paired difference shows.

    Attributes:
        name: The finding, such as ``"not shown to be better"``.
        n: Rows that were compared.
        tone: What to colour it as.
    """

    name: str
    n: int
    tone: Tone

    def __str__(self) -> str:
        """Return the finding with the number of rows: ``not shown to be better, n = 48``."""
        return f"{self.name}, n = {self.n}"


def judge_difference(difference: float, low: float, high: float, n: int) -> Verdict:
    """Return what a paired difference shows. It shows something where its interval leaves zero out.

    A lower score is called one either way: who reads on must not take it for a gain.

    Args:
        difference: The mean after, minus the mean before.
        low: Lower end of its interval.
        high: Upper end.
        n: Rows that were compared.

    Example:
        >>> str(judge_difference(0.04, -0.02, 0.10, 48))
        'not shown to be better, n = 48'
    """
    if low > 0:
        return Verdict("better", n, "better")
    if high < 0:
        return Verdict("worse", n, "worse")
    name = "lower, not shown to be worse" if difference < 0 else "not shown to be better"
    return Verdict(name, n, "unshown")
