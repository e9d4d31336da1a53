"""From many reflections to lessons: two scans, which compare lessons by number or merge texts, the
union, the naive baseline, and what of the reflections is retained.
"""

from combee_dspy.aggregators._base import Aggregator, arrived, gathered, together
from combee_dspy.aggregators._coverage import Coverage, text_lines
from combee_dspy.aggregators._dealing import shard_count
from combee_dspy.aggregators._lessons import parse_lessons
from combee_dspy.aggregators._parallel_scan import ParallelScan
from combee_dspy.aggregators._prompts import LearnFromExamples, MergeLessons, RelateLessons
from combee_dspy.aggregators._reference_scan import ReferenceScan
from combee_dspy.aggregators._retention import measure_retention
from combee_dspy.aggregators._single_call import SingleCall
from combee_dspy.aggregators._union import Union

__all__ = [
    "Aggregator",
    "Coverage",
    "LearnFromExamples",
    "MergeLessons",
    "ParallelScan",
    "ReferenceScan",
    "RelateLessons",
    "SingleCall",
    "Union",
    "arrived",
    "gathered",
    "measure_retention",
    "parse_lessons",
    "shard_count",
    "text_lines",
    "together",
]
