"""The proposer's temperature over a run."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

__all__ = ["Temperature"]

Degrees = Annotated[float, Field(ge=0, le=2)]


@parameters
class Temperature:
    """The proposer's sampling temperature by update, raised while the search stands still.

    Between ``start`` and ``end`` it follows half a cosine (Loshchilov and Hutter
    2017, "SGDR", equation 5), and stays at ``end`` afterwards. Each stale update
    beyond ``patience`` adds ``raise_by``, up to ``highest``.

    Not used unless asked for: some models take no temperature, and a cached
    answer is asked for again only at another temperature.

    Attributes:
        start: Temperature of the first update.
        end: Temperature after ``updates`` updates; ``start`` for a constant one.
        updates: Updates from ``start`` to ``end``.
        raise_by: Added for each stale update beyond ``patience``.
        patience: Updates without progress that raise nothing.
        highest: No temperature is above it.
    """

    start: Degrees = 1.0
    end: Degrees = 0.7
    updates: Annotated[int, Field(ge=1)] = 20
    raise_by: Degrees = 0.1
    patience: Annotated[int, Field(ge=0)] = 2
    highest: Degrees = 1.3

    def __post_init__(self) -> None:
        if self.highest < max(self.start, self.end):
            remedy = "Raise it, or lower start and end."
            raise ArgumentValueError("Temperature.highest", self.highest, "is below start or end", remedy)

    def at(self, update: int, stale: int = 0) -> float:
        """Return the temperature of an update. Pure.

        Args:
            update: From 0.
            stale: Updates since the best validation score last rose. A draw after a refusal counts as one more.
        """
        part = min(update / (self.updates - 1), 1.0) if self.updates > 1 else 1.0
        planned = self.start + (self.end - self.start) * (1 - math.cos(math.pi * part)) / 2
        return min(planned + self.raise_by * max(stale - self.patience, 0), self.highest)
