"""Each predictor's part of a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dspy.teleprompt.bootstrap_trace import FailedPrediction

from combee_dspy.records import PredictorRun, Rollout

__all__ = ["predictor_runs"]


def predictor_runs(predictor: Any, rollouts: Iterable[Rollout]) -> tuple[PredictorRun, ...]:
    """Return a predictor's calls in the rollouts, in order.

    A call is the predictor's when the signatures are equal, as in DSPy's own
    reflective dataset; answers that did not parse are left out.

    Args:
        predictor: The predictor, of any copy of the program.
        rollouts: The rollouts of one minibatch.
    """
    runs: list[PredictorRun] = []
    for rollout in rollouts:
        first = True
        for caller, inputs, outputs in rollout.trace:
            if isinstance(outputs, FailedPrediction) or not caller.signature.equals(predictor.signature):
                continue
            runs.append(PredictorRun(rollout.example_id, dict(inputs), dict(outputs.items()), rollout.score, first))
            first = False
    return tuple(runs)
