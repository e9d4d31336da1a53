"""Settings of the simulated service."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.simulated.capacity import CapacityModel
from combee_dspy.lms.simulated.failures import FailureRates
from combee_dspy.lms.simulated.latency import LatencyLaw
from combee_dspy.lms.simulated.reasoning import ReasoningLaw

__all__ = ["SimulatedConfig"]

_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConfig:
    """Settings of the simulated service; the defaults are those of the project's benchmarks.

    Args:
        seed: Seed of every draw: answers, latencies, failures, attention.
        latency: The latency law.
        capacity: The law of context overload in writing requests.
        reasoning: How long a task's answer reasons where the program asks for it; None for one short sentence.
        failures: Failures injected on purpose; none by default.
        slots: Calls served at once, at least 1. Further calls wait in order of arrival.
        reject_when_full: Answer 429 with ``Retry-After`` instead of letting a call wait.
        time_scale: Wall seconds for one simulated second, at least 0. 0 answers at once, without slots or queue.
        context_window: Most prompt tokens accepted, or None for no limit; beyond it HTTP 400.
        port: TCP port on 127.0.0.1; 0 lets the system choose.
        log_calls: Keep every call, with its texts, for :meth:`SimulatedService.calls`. Off by default:
            the memory of a long run would grow with its calls.

    Raises:
        ArgumentValueError: A value is out of range.
    """

    seed: int = 0
    latency: LatencyLaw = field(default_factory=LatencyLaw)
    capacity: CapacityModel = field(default_factory=CapacityModel)
    reasoning: ReasoningLaw | None = None
    failures: FailureRates = field(default_factory=FailureRates)
    slots: int = 64
    reject_when_full: bool = False
    time_scale: float = 1.0
    context_window: int | None = None
    port: int = 0
    log_calls: bool = False

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ArgumentValueError("slots", self.slots, "must be at least 1", "64 is the default.")
        if not math.isfinite(self.time_scale) or self.time_scale < 0:
            raise ArgumentValueError(
                "time_scale", self.time_scale, "must be a finite number, at least 0", "0 means that nothing waits."
            )
        if self.context_window is not None and self.context_window < 1:
            raise ArgumentValueError(
                "context_window", self.context_window, "must be at least 1 or None", "None means no limit."
            )
        if not 0 <= self.port <= _HIGHEST_PORT:
            raise ArgumentValueError("port", self.port, "is no TCP port", "0 lets the system choose a free one.")
