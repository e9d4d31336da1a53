"""What measures Combee against its peers, side by side, in one run."""

from combee_dspy.bench.bound import Bound, Call, bound_of, in_stages
from combee_dspy.bench.compare import MARGIN, Comparison, compare
from combee_dspy.bench.record import speed_record
from combee_dspy.bench.speed import SpeedRun, run_speed
from combee_dspy.bench.speed_methods import METHODS
from combee_dspy.bench.speed_options import LABEL, SpeedOptions, data_source
from combee_dspy.bench.speed_picture import speed_svg
from combee_dspy.bench.speed_quality import MethodResult, compare_over_seeds, summarize_speed

__all__ = [
    "LABEL",
    "MARGIN",
    "METHODS",
    "Bound",
    "Call",
    "Comparison",
    "MethodResult",
    "SpeedOptions",
    "SpeedRun",
    "bound_of",
    "compare",
    "compare_over_seeds",
    "data_source",
    "in_stages",
    "run_speed",
    "speed_record",
    "speed_svg",
    "summarize_speed",
]
