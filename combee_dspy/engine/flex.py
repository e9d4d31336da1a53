"""Rollouts of ``dspy.Flex`` programs, which DSPy evaluates itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from combee_dspy.engine._private import EvaluationBatch
from combee_dspy.records import Rollout

__all__ = ["flex_rollouts"]

# DSPy logs the reason where an output is missing, and keeps it nowhere.
_NO_OUTPUT = "no output: the code did not bind, or an LM call failed (DSPy's log says why)"


def flex_rollouts(
    examples: Sequence[dspy.Example], batch: EvaluationBatch, row_hash: Callable[[dspy.Example], str]
) -> tuple[Rollout, ...]:
    """Return what DSPy measured as rollouts.

    Args:
        examples: The batch.
        batch: DSPy's evaluation of it.
        row_hash: Names an example.

    Returns:
        One per example, in order; with traces where they were captured.
    """
    captured = {trajectory["example_ind"]: trajectory for trajectory in batch.trajectories or ()}
    return tuple(
        _rollout(example, row_hash(example), batch, position, captured.get(position, {}))
        for position, example in enumerate(examples)
    )


def _rollout(
    example: dspy.Example, example_id: str, batch: EvaluationBatch, position: int, captured: dict[str, Any]
) -> Rollout:
    prediction, output = batch.outputs[position], captured.get("score")
    error = None
    if prediction is None:
        error = _NO_OUTPUT
    elif isinstance(prediction, FailedPrediction) and prediction.format_reward is None:
        # Only an answer that did not parse has a reward: the others stand for a program that raised.
        error = prediction.completion_text
    objectives = batch.objective_scores[position] if batch.objective_scores else {}
    return Rollout(
        example_id,
        example,
        prediction,
        tuple(captured.get("trace") or ()),
        float(batch.scores[position]),
        feedback=str(output.get("feedback") or "") if isinstance(output, dspy.Prediction) else "",
        objective_scores=dict(objectives),
        error=error,
        failed_in="program" if error else None,
        metric_output=output,
    )
