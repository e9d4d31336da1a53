"""The checks, one module a kind."""

from combee_dspy.testing.checks._expect import ConformanceError, expect

__all__ = ["ConformanceError", "expect"]
