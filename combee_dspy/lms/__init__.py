"""Language models that come with the package: embedded, simulated, and clients."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "ChoiceAdapter": "combee_dspy.lms.embedded",
    "ConstrainedJSONAdapter": "combee_dspy.lms.embedded",
    "EmbeddedModel": "combee_dspy.lms.embedded",
    "embedded_lm": "combee_dspy.lms.embedded",
    "CapacityModel": "combee_dspy.lms.simulated",
    "FailureRates": "combee_dspy.lms.simulated",
    "LatencyLaw": "combee_dspy.lms.simulated",
    "ReasoningLaw": "combee_dspy.lms.simulated",
    "ServiceStats": "combee_dspy.lms.simulated",
    "SimulatedConfig": "combee_dspy.lms.simulated",
    "SimulatedQuestion": "combee_dspy.lms.simulated",
    "SimulatedService": "combee_dspy.lms.simulated",
    "SimulatedTask": "combee_dspy.lms.simulated",
    "formula_task": "combee_dspy.lms.simulated",
    "LMPort": "combee_dspy.lms.port",
    "connection_limit": "combee_dspy.lms._limit_warning",
    "limit_warning": "combee_dspy.lms._limit_warning",
    "metadata_once": "combee_dspy.lms._metadata_once",
    "pooled": "combee_dspy.lms.pool.lm",
    "probe": "combee_dspy.lms._probe",
    "simulated_formula_service": "combee_dspy.lms.simulated",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that importing the package starts no server and reads no model.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
