"""The aggregator "template" for combee_dspy."""

from combee_template._strategy import Template

__all__ = ["Template"]
