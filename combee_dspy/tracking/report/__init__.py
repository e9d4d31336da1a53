"""A run told on one HTML page, which needs no network and loads nothing."""

from combee_dspy.tracking.report._page import keep_report, page_style, render_report, write_report

__all__ = ["keep_report", "page_style", "render_report", "write_report"]
