"""A simulated language model behind an OpenAI-compatible endpoint on the loopback interface.

Latency, capacity, failures and knowledge follow explicit, seeded laws
(:class:`LatencyLaw`, :class:`CapacityModel`, :class:`FailureRates`,
:class:`SimulatedTask`). The laws are the service's own: no strategy may read
them. Whatever rests on this service is simulated and says so.
"""

from __future__ import annotations

from combee_bench.simulated.capacity import CapacityModel
from combee_bench.simulated.endpoint import SimulatedConfig
from combee_bench.simulated.knowledge import SimulatedQuestion, SimulatedTask
from combee_bench.simulated.laws import FailureRates, LatencyLaw, ReasoningLaw, Status, WordingLaw
from combee_bench.simulated.service import SimulatedService
from combee_bench.simulated.stats import CallRecord, Kind, ServiceStats, Tally
from combee_bench.simulated.tasks import benchmark_task, finer_task, formula_task

__all__ = [
    "CallRecord",
    "CapacityModel",
    "FailureRates",
    "Kind",
    "LatencyLaw",
    "ReasoningLaw",
    "ServiceStats",
    "SimulatedConfig",
    "SimulatedQuestion",
    "SimulatedService",
    "SimulatedTask",
    "Status",
    "Tally",
    "WordingLaw",
    "benchmark_task",
    "finer_task",
    "formula_task",
]
