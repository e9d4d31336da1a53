"""Serial GEPA: the teleprompter that DSPy ships."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from combee_bench.baselines._base import Baseline, BaselineTask, Found, compiled
from combee_dspy.strategies import parameters

__all__ = ["Gepa"]


@parameters
class Gepa(Baseline):
    """``dspy.GEPA``: one reflection over a minibatch at a time.

    GEPA looks at its budget between iterations only and may pass it by one.

    Args:
        minibatch: Examples in a minibatch; GEPA's own default is 3.
        use_merge: Whether GEPA merges candidates.
    """

    name: ClassVar[str] = "gepa"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "gepa")
    serial: ClassVar[bool] = True
    minibatch: Annotated[int, Field(ge=1)] = 3
    use_merge: bool = True

    def search(self, task: BaselineTask) -> Found:
        """Run ``dspy.GEPA``."""
        optimizer = dspy.GEPA(
            task.rows.metric,
            max_metric_calls=task.budget,
            reflection_lm=task.reflection_lm,
            reflection_minibatch_size=self.minibatch,
            use_merge=self.use_merge,
            num_threads=task.threads,
            seed=task.seed,
            track_stats=True,
        )
        program: Any = compiled(optimizer, task)
        results = program.detailed_results
        return Found(program, int(results.total_metric_calls), max(results.val_aggregate_scores))
