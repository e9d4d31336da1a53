"""A simulated language model behind an OpenAI-compatible endpoint on the loopback interface.

Latency, capacity, failures and knowledge follow explicit, seeded laws
(:class:`LatencyLaw`, :class:`CapacityModel`, :class:`FailureRates`,
:class:`SimulatedTask`). The laws are the service's own: no strategy may read
them. Whatever rests on this service is simulated and says so.
"""

from __future__ import annotations

from combee_dspy.lms.simulated.capacity import CapacityModel
from combee_dspy.lms.simulated.config import SimulatedConfig
from combee_dspy.lms.simulated.failures import FailureRates, Status
from combee_dspy.lms.simulated.finer import finer_task
from combee_dspy.lms.simulated.formula import formula_task
from combee_dspy.lms.simulated.knowledge import SimulatedQuestion, SimulatedTask
from combee_dspy.lms.simulated.latency import LatencyLaw
from combee_dspy.lms.simulated.reasoning import ReasoningLaw
from combee_dspy.lms.simulated.server import SimulatedService, simulated_formula_service
from combee_dspy.lms.simulated.stats import CallRecord, Kind, ServiceStats, Tally

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
    "finer_task",
    "formula_task",
    "simulated_formula_service",
]
