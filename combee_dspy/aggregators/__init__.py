"""Aggregators turn many reflections into lessons: two scans, a union, and the naive baseline.

| module | what it is |
| --- | --- |
| ``_reference_scan`` | the default: calls relate numbered lessons, code edits |
| ``_parallel_scan`` | the paper's: calls merge lists of lessons |
| ``_union`` | code joins the lists |
| ``_single_call`` | one call reads everything |
| ``_base``, ``_dealing`` | the contract; shards of reflections, runs that fit a call |
| ``_scan``, ``_reading`` | levels of nodes; level 1, which reads the shards |
| ``_prompts`` | what calls are asked |
| ``_lessons``, ``_sources``, ``_unread``, ``_again`` | reading an answer |
| ``_draft``, ``_comparing``, ``_rulings`` | relations between lessons, as edits of a book |
| ``_retention``, ``_coverage`` | which reflections a result covers, for the report |
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
