"""Serial GEPA: the teleprompter that DSPy ships."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from combee_bench.baselines._base import ALL_LIMITS, Baseline, BaselineTask, Found, compiled
from combee_dspy.strategies import parameters

__all__ = ["Gepa"]

_NO_LIMIT = 2**31


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
    ends_by: ClassVar[tuple[str, ...]] = ALL_LIMITS
    minibatch: Annotated[int, Field(ge=1)] = 3
    use_merge: bool = True

    def search(self, task: BaselineTask) -> Found:
        """Run ``dspy.GEPA``."""
        optimizer = dspy.GEPA(
            task.rows.metric,
            max_metric_calls=task.budget or _NO_LIMIT,
            reflection_lm=task.reflection_lm,
            reflection_minibatch_size=self.minibatch,
            use_merge=self.use_merge,
            num_threads=task.threads,
            seed=task.seed,
            track_stats=True,
            gepa_kwargs={"stop_callbacks": [lambda state: task.is_over()]},
        )
        program: Any = compiled(optimizer, task)
        results = program.detailed_results
        return Found(program, int(results.total_metric_calls), max(results.val_aggregate_scores))
