"""Weighers: which side of a contradiction is served, and which exception is more than noise."""

from combee_dspy.weighers._base import Standing, Weigher
from combee_dspy.weighers._posterior import Posterior
from combee_dspy.weighers._trusting import Trusting

__all__ = ["Posterior", "Standing", "Trusting", "Weigher"]
