"""Honest figures: intervals for what a run claims."""

from combee_dspy.evaluation._bootstrap import PairedDifference, paired_difference

__all__ = ["PairedDifference", "paired_difference"]
