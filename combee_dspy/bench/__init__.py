"""What measures Combee against its peers, side by side, in one run."""

from combee_dspy.bench.compare import MARGIN, Comparison, compare
from combee_dspy.bench.record import LABEL, speed_record
from combee_dspy.bench.speed import METHODS, MethodResult, SpeedOptions, run_speed

__all__ = [
    "LABEL",
    "MARGIN",
    "METHODS",
    "Comparison",
    "MethodResult",
    "SpeedOptions",
    "compare",
    "run_speed",
    "speed_record",
]
