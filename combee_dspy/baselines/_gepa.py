"""Serial GEPA: the teleprompter that DSPy ships."""

from __future__ import annotations

from typing import Any, ClassVar

import dspy

from combee_dspy.baselines._base import Baseline
from combee_dspy.baselines._desk import Desk
from combee_dspy.baselines._records import BaselineTask
from combee_dspy.bounds import check_whole

__all__ = ["GEPA"]


class GEPA(Baseline):
    """``dspy.GEPA`` with the defaults of its constructor: one reflection over a minibatch of three at a time.

    The budget is ``max_metric_calls``. GEPA looks at it between iterations only;
    here a rollout beyond it is not bought, and the best on validation counts.

    Args:
        minibatch: Examples in a minibatch; GEPA's own default is 3.
        use_merge: Whether GEPA merges candidates.
    """

    name: ClassVar[str] = "gepa"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "gepa")

    def __init__(self, minibatch: int = 3, use_merge: bool = True) -> None:
        self.minibatch = minibatch
        self.use_merge = use_merge

    def validate(self) -> None:
        """Check the parameters.

        Raises:
            ArgumentTypeError: ``minibatch`` is no whole number.
            ArgumentValueError: It is below 1.
        """
        check_whole("minibatch", self.minibatch, 1)

    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        """Run ``dspy.GEPA``."""
        settings: dict[str, Any] = {"reflection_minibatch_size": self.minibatch, "use_merge": self.use_merge}
        optimizer = dspy.GEPA(
            desk.metric,
            max_metric_calls=task.budget,
            reflection_lm=task.reflection_lm,
            num_threads=task.threads,
            failure_score=task.failure_score,
            seed=task.seed,
            **settings,
        )
        program: dspy.Module = optimizer.compile(
            task.program.deepcopy(), trainset=list(task.train), valset=list(task.validation)
        )
        return program
