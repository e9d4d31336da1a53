"""Benchmarks: rows in pinned splits, a program to start from, and a score with feedback."""

from combee_dspy.benchmarks._base import (
    Availability,
    Benchmark,
    Card,
    LoadedBenchmark,
    Metric,
    Split,
    load_benchmark,
)
from combee_dspy.benchmarks._records import Reading, RecordBenchmark, build_splits, check_pins
from combee_dspy.benchmarks._source import RowSource
from combee_dspy.benchmarks.finer import Finer
from combee_dspy.benchmarks.formula import Formula
from combee_dspy.benchmarks.formula_mini import FormulaMini
from combee_dspy.benchmarks.house_rules import HouseRules
from combee_dspy.benchmarks.hub import Hub

__all__ = [
    "Availability",
    "Benchmark",
    "Card",
    "Finer",
    "Formula",
    "FormulaMini",
    "HouseRules",
    "Hub",
    "LoadedBenchmark",
    "Metric",
    "Reading",
    "RecordBenchmark",
    "RowSource",
    "Split",
    "build_splits",
    "check_pins",
    "load_benchmark",
]
