"""What a speedup is divided by: other optimizers, and Combee itself, behind one interface.

Any distribution may publish one, as an entry point of the group ``combee_dspy.baselines``.
"""

from combee_bench.baselines._base import ALL_LIMITS, Baseline, BaselineTask, Found
from combee_bench.baselines._registry import baseline_names, build_baseline

__all__ = ["ALL_LIMITS", "Baseline", "BaselineTask", "Found", "baseline_names", "build_baseline"]
