"""FiNER: US GAAP tags for numbers in financial filings."""

from combee_dspy.benchmarks.finer.benchmark import PINS, Finer
from combee_dspy.benchmarks.finer.records import LABELS
from combee_dspy.benchmarks.finer.scoring import TagMetric, TagResult, grade

__all__ = ["LABELS", "PINS", "Finer", "TagMetric", "TagResult", "grade"]
