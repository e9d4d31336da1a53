"""Stopping rules: budgets, patience and targets, composed with ``|`` and ``&``."""

from combee_dspy.stopping._base import AllOf, AnyOf, Limits, RunView, StoppingRule, ask
from combee_dspy.stopping._rules import (
    Budget,
    Patience,
    Target,
    require_countable,
    require_validation,
)

__all__ = [
    "AllOf",
    "AnyOf",
    "Budget",
    "Limits",
    "Patience",
    "RunView",
    "StoppingRule",
    "Target",
    "ask",
    "require_countable",
    "require_validation",
]
