"""The proposer's temperature over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["TemperatureSchedule"]

_SHAPES = ("cosine", "linear", "constant")
_HIGHEST = 2.0


@dataclass(frozen=True, slots=True)
class TemperatureSchedule:
    """The proposer's sampling temperature, by iteration, raised while the search stands still.

    Between ``start`` and ``end`` it follows half a cosine (Loshchilov and Hutter
    2017, "SGDR", equation 5) or a line, and stays at ``end`` afterwards. Each
    stale iteration beyond ``patience`` adds ``raise_by``, up to ``highest``. A
    pure function of its arguments: a resumed run gets the same temperatures.

    Not used unless asked for: some models take no temperature, and a cached
    answer is asked for again only at another temperature.

    Attributes:
        start: Temperature of iteration 1, 0 to 2.
        end: Temperature from iteration ``iterations`` on, 0 to 2.
        iterations: Iterations from ``start`` to ``end``, at least 1.
        shape: ``"cosine"``, ``"linear"``, or ``"constant"``, which stays at ``start``.
        raise_by: Added for each stale iteration beyond ``patience``, 0 to 2.
        patience: Iterations without progress that raise nothing, at least 0.
        highest: No temperature is above it, at most 2.
    """

    start: float = 1.0
    end: float = 0.7
    iterations: int = 20
    shape: Literal["cosine", "linear", "constant"] = "cosine"
    raise_by: float = 0.1
    patience: int = 2
    highest: float = 1.3

    def validate(self) -> None:
        """Check the fields.

        Raises:
            ArgumentTypeError: A field has another type.
            ArgumentValueError: A field is out of its range.
        """
        for name in ("start", "end", "raise_by", "highest"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ArgumentTypeError(f"temperature.{name}", value, "is no number", "Give a number from 0 to 2.")
            if not 0 <= value <= _HIGHEST:
                remedy = "LM services take 0 to 2; many take 0 to 1 only."
                raise ArgumentValueError(f"temperature.{name}", value, "is not from 0 to 2", remedy)
        for name, least in (("iterations", 1), ("patience", 0)):
            value = getattr(self, name)
            if type(value) is not int:
                raise ArgumentTypeError(f"temperature.{name}", value, "is no whole number", "Count iterations.")
            if value < least:
                raise ArgumentValueError(f"temperature.{name}", value, f"is below {least}", "Count iterations.")
        if self.shape not in _SHAPES:
            remedy = f"Choose one of {', '.join(_SHAPES)}."
            raise ArgumentValueError("temperature.shape", self.shape, "is no shape", remedy)
        if self.highest < max(self.start, self.end):
            remedy = "Raise it, or lower start and end."
            raise ArgumentValueError("temperature.highest", self.highest, "is below start or end", remedy)

    def temperature(self, iteration: int, stale_iterations: int = 0) -> float:
        """Return the temperature of an iteration.

        Args:
            iteration: From 1.
            stale_iterations: Iterations since the best validation score last rose.
        """
        raised = self.raise_by * max(stale_iterations - self.patience, 0)
        return min(self._planned(iteration) + raised, self.highest)

    def _planned(self, iteration: int) -> float:
        if self.shape == "constant":
            return self.start
        if iteration >= self.iterations:
            return self.end
        part = max(iteration - 1, 0) / (self.iterations - 1)
        fallen = (1 - math.cos(math.pi * part)) / 2 if self.shape == "cosine" else part
        return self.start + (self.end - self.start) * fallen
