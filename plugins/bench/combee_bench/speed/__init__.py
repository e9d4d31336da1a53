"""Seconds for one epoch: Combee beside ``dspy.GEPA``, on one service, in one run."""

from combee_bench.speed.methods import METHODS, Method
from combee_bench.speed.results import SpeedRun, line, sides_of, summary, table
from combee_bench.speed.run import run

__all__ = ["METHODS", "Method", "SpeedRun", "line", "run", "sides_of", "summary", "table"]
