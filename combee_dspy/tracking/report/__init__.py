"""A run's report: events are folded into frozen data, and data is rendered as one self-contained HTML page."""

from __future__ import annotations

from combee_dspy.tracking.report._collect import Collector, collect
from combee_dspy.tracking.report._data import ReportData
from combee_dspy.tracking.report._diff import diff, readable
from combee_dspy.tracking.report._hook import ReportHook
from combee_dspy.tracking.report._page import render
from combee_dspy.tracking.report._telling import seen_in

__all__ = ["Collector", "ReportData", "ReportHook", "collect", "diff", "readable", "render", "seen_in"]
