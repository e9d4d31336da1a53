"""From many reflections to lessons: the scan and its plan, the union, the baselines, and a node's stand-ins."""

from combee_dspy.aggregators._alternatives import NodeAlternative, node_lessons
from combee_dspy.aggregators._base import Aggregator, ReadyShard, Scan
from combee_dspy.aggregators._parallel_scan import ParallelScan
from combee_dspy.aggregators._plan import PlanNode, ScanPlan, TokenBudget, plan_scan
from combee_dspy.aggregators._sharded import Dealt
from combee_dspy.aggregators._single_call import SingleCall
from combee_dspy.aggregators._summarize import Summarize
from combee_dspy.aggregators._top_k import TopK
from combee_dspy.aggregators._union import Union

__all__ = [
    "Aggregator",
    "Dealt",
    "NodeAlternative",
    "ParallelScan",
    "PlanNode",
    "ReadyShard",
    "Scan",
    "ScanPlan",
    "SingleCall",
    "Summarize",
    "TokenBudget",
    "TopK",
    "Union",
    "node_lessons",
    "plan_scan",
]
