"""From many reflections to lessons: the scan, its plan, and the naive baseline."""

from combee_dspy.aggregators._base import Aggregator
from combee_dspy.aggregators._parallel_scan import ParallelScan
from combee_dspy.aggregators._plan import PlanNode, ScanPlan, TokenBudget, plan_scan
from combee_dspy.aggregators._single_call import SingleCall

__all__ = ["Aggregator", "ParallelScan", "PlanNode", "ScanPlan", "SingleCall", "TokenBudget", "plan_scan"]
