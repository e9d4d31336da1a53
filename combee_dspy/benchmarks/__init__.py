"""Benchmarks: rows in pinned splits, a program to start from, and a score with feedback."""

from combee_dspy.benchmarks._base import BaseBenchmark, Benchmark, Metric, Split
from combee_dspy.benchmarks._load import benchmark_names, load_benchmark
from combee_dspy.benchmarks.formula import Formula
from combee_dspy.benchmarks.formula_mini import FormulaMini

__all__ = [
    "BaseBenchmark",
    "Benchmark",
    "Formula",
    "FormulaMini",
    "Metric",
    "Split",
    "benchmark_names",
    "load_benchmark",
]
