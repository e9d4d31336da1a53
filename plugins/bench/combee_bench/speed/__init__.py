"""Seconds for one epoch: Combee beside ``dspy.GEPA``, on one service, in one run."""

from combee_bench.speed.methods import METHODS, Method
from combee_bench.speed.picture import draw
from combee_bench.speed.results import MethodResult, SpeedRun, line, results_of, summary, table
from combee_bench.speed.run import run

__all__ = [
    "METHODS",
    "Method",
    "MethodResult",
    "SpeedRun",
    "draw",
    "line",
    "results_of",
    "run",
    "summary",
    "table",
]
