"""Batch controllers: how many examples the next minibatch holds."""

from combee_dspy.controllers._base import BatchController, BatchView
from combee_dspy.controllers._power_law import PowerLaw
from combee_dspy.controllers._static import Static

__all__ = ["BatchController", "BatchView", "PowerLaw", "Static"]
