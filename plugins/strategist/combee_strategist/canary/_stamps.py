"""Marks on MLflow's spans: which request, which version, which predictor."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

__all__ = ["stamp_request", "stamped"]


class _ComponentStamp(BaseCallback):
    """Marks the span of a predictor's call with its path in the program.

    MLflow's own callback stands among DSPy's settings, which come before a predictor's.
    """

    def __init__(self, component: str) -> None:
        self._component = component

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Mark the span that is open."""
        _stamp({"combee.component": self._component})


def stamped(program: dspy.Module) -> dspy.Module:
    """Let a program's predictors mark their spans; return the program."""
    for name, predictor in program.named_predictors():
        predictor.callbacks = [*predictor.callbacks, _ComponentStamp(name)]
    return program


def stamp_request(request: str, version: int, candidate: str) -> None:
    """Mark the span of a request, where MLflow traces it."""
    _stamp(
        {"combee.request": request, "combee.version": version, "combee.candidate": candidate},
    )


def _stamp(attributes: dict[str, object]) -> None:
    import mlflow

    span = mlflow.get_current_active_span()
    if span is not None:
        span.set_attributes(attributes)
