"""A simulated language model behind an OpenAI-compatible endpoint on the loopback interface.

Latency, capacity, failures and knowledge follow explicit, seeded laws
(:class:`LatencyLaw`, :class:`CapacityModel`, :class:`FailureRates`,
:class:`SimulatedTask`). The laws are the service's own: no strategy may read
them. Whatever rests on this service is simulated and says so.
"""

from __future__ import annotations

from combee_simulator.benchmarks import benchmark_service, benchmark_task, finer_task, formula_task
from combee_simulator.capacity import CapacityModel
from combee_simulator.endpoint import SimulatedConfig
from combee_simulator.knowledge import SimulatedQuestion, SimulatedTask
from combee_simulator.laws import FailureRates, LatencyLaw, ReasoningLaw, Status, WordingLaw
from combee_simulator.service import SimulatedService
from combee_simulator.stats import CallRecord, Kind, ServiceStats, Tally

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
    "benchmark_service",
    "benchmark_task",
    "finer_task",
    "formula_task",
]
