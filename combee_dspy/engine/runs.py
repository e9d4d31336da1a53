"""Each predictor's part of a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

from dspy.teleprompt.bootstrap_trace import FailedPrediction

from combee_dspy.records import PredictorRun, Rollout

__all__ = ["predictor_runs"]


def predictor_runs(predictor: Any, rollouts: Iterable[Rollout], name: str) -> tuple[PredictorRun, ...]:
    """Return a predictor's calls in the rollouts, in order.

    A call is the predictor's when it was made from its place in the program;
    where that is not known, when the signatures are equal, as in DSPy's own
    reflective dataset. Answers that did not parse are left out.

    Args:
        predictor: The predictor, of any copy of the program.
        rollouts: The rollouts of one minibatch.
        name: The predictor's path in the program.
    """
    runs: list[PredictorRun] = []
    for rollout in rollouts:
        first = True
        labels = dict(rollout.example.labels().items())
        for (caller, inputs, outputs), path in zip(rollout.trace, chain(rollout.callers, repeat("")), strict=False):
            own = path == name if path else caller.signature.equals(predictor.signature)
            if isinstance(outputs, FailedPrediction) or not own:
                continue
            made = dict(outputs.items())
            runs.append(PredictorRun(rollout.example_id, dict(inputs), made, rollout.score, first, labels))
            first = False
    return tuple(runs)
