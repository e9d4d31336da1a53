"""Benchmarks: rows in pinned splits, a program to start from, and a score with feedback."""

from combee_dspy.benchmarks._base import BaseBenchmark, Benchmark, Metric, Split
from combee_dspy.benchmarks._card import Availability, Card, Source
from combee_dspy.benchmarks._load import benchmark_names, load_benchmark
from combee_dspy.benchmarks.finer import Finer
from combee_dspy.benchmarks.formula import Formula
from combee_dspy.benchmarks.formula_mini import FormulaMini

__all__ = [
    "Availability",
    "BaseBenchmark",
    "Benchmark",
    "Card",
    "Finer",
    "Formula",
    "FormulaMini",
    "Metric",
    "Source",
    "Split",
    "benchmark_names",
    "load_benchmark",
]
