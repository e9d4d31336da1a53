"""What measures Combee against its peers, side by side, in one run."""

from combee_dspy.bench.speed import MethodResult, SpeedOptions, run_speed

__all__ = ["MethodResult", "SpeedOptions", "run_speed"]
