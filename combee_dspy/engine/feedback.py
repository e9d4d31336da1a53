"""GEPA's metric, as DSPy's reflective dataset asks it for feedback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import dspy

from combee_dspy.costs import role_scope

__all__ = ["CrashedPrediction", "as_evaluator", "feedback_map"]


class CrashedPrediction(dspy.Prediction):
    """Stands for the output of a program that raised, so that its steps can still be reflected on."""

    def __init__(self, error: str) -> None:
        super().__init__(error=error)


def feedback_map(student: dspy.Module, metric: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return GEPA's feedback function per predictor.

    Args:
        student: The program.
        metric: GEPA's metric; called with the predictor's name and its part of the trace.

    Returns:
        Predictor name to a function that returns ``score`` and ``feedback``.
    """

    def make(name: str, predictor: Any) -> Callable[..., Any]:
        def feedback(
            predictor_output: Any, predictor_inputs: Any, module_inputs: Any, module_outputs: Any, captured_trace: Any
        ) -> Any:
            if isinstance(module_outputs, CrashedPrediction):
                return {"score": None, "feedback": f"After this step the program failed: {module_outputs.error}"}
            part = [(predictor, predictor_inputs, predictor_output)]
            output = metric(module_inputs, module_outputs, captured_trace, name, part)
            if hasattr(output, "feedback"):
                if output["feedback"] is None:
                    output["feedback"] = f"This trajectory got a score of {output['score']}."
                return output
            return {"score": output, "feedback": f"This trajectory got a score of {output}."}

        return feedback

    return {name: make(name, predictor) for name, predictor in student.named_predictors()}


def as_evaluator(metric: Callable[..., Any]) -> Callable[..., Any]:
    """Return the metric, its LM calls made in the evaluator's role."""

    # DSPy reads the parameters that a metric declares; wraps() keeps them readable.
    @functools.wraps(metric)
    def scored(*args: Any, **kwargs: Any) -> Any:
        with role_scope("evaluator"):
            return metric(*args, **kwargs)

    return scored
